"""npz: mnist.npz with its headers compared before anything is made, and nothing of it run."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from mirrorkit.data import npz
from mirrorkit.errors import DataError

ARRAYS = {"x": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.asfortranarray(np.arange(6).reshape(2, 3))}


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write(path, method=zipfile.ZIP_DEFLATED, **members: bytes):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_as_they_were_saved_and_can_be_written_to(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    for found, array in zip(npz.read(tmp_path / "a.npz", ("x", "y")), ARRAYS.values(), strict=True):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
        found[0] = 1


def test_what_claims_to_become_far_more_than_it_is_takes_no_memory(tmp_path, monkeypatch):
    path = write(tmp_path / "a.npz", x=npy(np.zeros(150 << 20, np.uint8)))
    monkeypatch.setattr(npz, "_read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DataError, match=r"a\.npz has \d+ bytes and says that they become 157286\d+"):
        npz.read(path, ("x",))


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy(np.zeros(3, np.uint8))[:-1], "has 130 bytes for uint8"),
        (npy(np.zeros(3, np.uint8)).replace(b"(3,)", b"(2**9,)"), "malformed"),
        (npy(np.zeros(3, np.uint8)).replace(b"(3,), }    ", b"(3333333,),}"), "132 bytes for uint8 .3333333."),
        (npy(np.zeros(3)), "for float64"),
        (b"junk", "magic string"),
    ],
)
def test_damage_is_named(tmp_path, member, words):
    with pytest.raises(DataError, match=rf"a\.npz is damaged: it should hold x;.*{words}"):
        npz.read(write(tmp_path / "a.npz", x=member), ("x",))


def test_objects_and_other_compression_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    with pytest.raises(DataError, match="for object"):
        npz.read(tmp_path / "a.npz", ("x",))
    with pytest.raises(DataError, match="something else than deflate"):
        npz.read(write(tmp_path / "b.npz", zipfile.ZIP_LZMA, x=npy(ARRAYS["x"])), ("x",))
