"""What is printed of an address: no user, no password, no query; and nothing of the environment."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import pickle
import pkgutil
import re
import traceback
from types import ModuleType
from typing import Any

import pytest

import mirrorkit as mk
from mirrorkit import errors, object_storage
from mirrorkit.__main__ import main
from mirrorkit.printing import shown

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install fsspec")

SECRETS = ("user", "pass", "word", "SIGNATURE")
PRINTED = {
    "ftp://user:pass@host/x": "ftp://host/x",
    "s3://user:pass/wo+rd=@bucket/x@y": "s3://y",  # too little, rather than too much
    "sftp://user@host:22/x": "sftp://host:22/x",
    "['smb://user:pass@a/1', 'smb://user:p@ss@b/2']": "['smb://a/1', 'smb://b/2']",
    "filecache::ftp://user:pass@host/x?SIGNATURE": "filecache::ftp://host/x?...",
    "https://host:80/x@y?X-Amz-Signature=SIGNATURE&b=2 is gone": "https://host:80/x@y?... is gone",
    "no such url: /x?X-Amz-Signature=SIGNATURE": "no such url: /x?...",
    "s3:/user:pass@bucket": "s3:/bucket",
    "ftp://user:pass?word@host/x": "ftp://host/x?...",
    "worker 0 has the address 'user:pass@a:1'": "worker 0 has the address 'a:1'",
    "hdfs://host:8020/x@y": "hdfs://host:8020/x@y",
    "C:/x@y, /x?, what? a = b, 'grpc://'": "C:/x@y, /x?, what? a = b, 'grpc://'",
}


@pytest.mark.parametrize("text", PRINTED)
def test_what_is_printed_of_an_address(text: str) -> None:
    assert shown(text) == PRINTED[text]
    error = errors.FileError(f"{text}.")
    for printed in (str(error), repr(error), str(pickle.loads(pickle.dumps(error)))):
        assert re.split("['?]", PRINTED[text])[0] in printed
        assert not any(secret in printed for secret in SECRETS)


def test_a_long_text_takes_no_time() -> None:
    for text in ("a" * 10**6, "?" * 10**6, "s3://a:" * 10**5):
        shown(text)  # minutes or hours, where a search begins again at each character


def test_log_lines(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "mirrorkit"):
        logging.getLogger("mirrorkit").warning("%s: 100 %%\n%s", "ftp://user:pass@host", "forged\r\x1b[2J")
    assert caplog.messages == ["ftp://host: 100 %\n  forged\\r\\x1b[2J"]


def all_modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(mk.__path__, "mirrorkit.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def test_no_default_holds_the_environment() -> None:
    """`help()` and notebooks print the defaults of arguments."""
    found = [one for module in all_modules() for one in vars(module).values()]
    found += [one for kind in found if inspect.isclass(kind) for one in vars(kind).values()]
    functions = [one for one in found if inspect.isfunction(one)]
    assert len(functions) > 3000
    for function in functions:
        for parameter in inspect.signature(function).parameters.values():
            assert "PATH" not in repr(parameter.default), function


class Failing(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A store whose errors name the address as it was given, as those of HTTP do."""

    protocol = "failing"
    kind: type[Exception] = OSError

    def fails(self, *args: Any, **options: Any) -> Any:
        raise self.kind("403 for https://host/x?X-Amz-Signature=SIGNATURE") from ValueError("ftp://user:pass@host")

    ls = find = glob = info = cat_file = pipe_file = put_file = rm_file = fails


@pytest.mark.parametrize("kind", [OSError, PermissionError, FileNotFoundError, TimeoutError, ValueError])
def test_no_traceback_of_a_store_prints_secrets(kind: type[Exception], monkeypatch: Any, caplog: Any) -> None:
    fsspec.register_implementation("failing", Failing, clobber=True)
    monkeypatch.setattr(Failing, "kind", kind)
    monkeypatch.setattr(object_storage, "_WAITS", (0.0,))
    address = "failing://user:pass/word@bucket/x"
    calls = {
        "checkpoints": lambda: mk.train.Checkpoints(address)._place.take(),
        "records": lambda: mk.data.records(address, global_batch_size=4),
        "image_folder": lambda: mk.data.image_folder(address, global_batch_size=4),
        "parquet": lambda: mk.data.parquet(address, global_batch_size=4),
        "export": lambda: mk.train.export(mk.models.create("linear"), address),
    }
    with caplog.at_level(logging.INFO, "mirrorkit"):
        for name, call in calls.items():
            with pytest.raises(errors.MirrorkitError, match="bucket/x") as caught:
                call()
            printed = "".join(traceback.format_exception(caught.value, chain=True))
            assert not any(secret in printed for secret in SECRETS), f"{name}: {printed}"
    assert not any(secret in caplog.text for secret in SECRETS)


def test_the_doctor_prints_none(monkeypatch: Any, capsys: Any) -> None:
    fsspec.register_implementation("failing", Failing, clobber=True)
    monkeypatch.setattr(object_storage, "_WAITS", ())
    monkeypatch.setattr("mirrorkit.doctor.probe.devices", lambda *_, **__: iter(()))
    address = "failing://user:pass/word@bucket/x"
    for more in ([], ["--json"]):
        main(["doctor", "--data", address, "--checkpoints", address, *more])
        printed = capsys.readouterr().out
        assert "failing://bucket/x" in printed
        assert not any(secret in printed for secret in SECRETS)
        assert not more or json.loads(printed)
