"""The sdist and the wheel: what they hold, what they say, and that each works in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from supported_range import ROOT, readme_script

import mirrorkit

pytestmark = pytest.mark.slow

SOURCE = ["docs", "examples", "mirrorkit", "tests", *(path.name for path in ROOT.iterdir() if path.is_file())]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it; of a copy, for a build leaves files beside the source."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in SOURCE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    # without isolation: nothing is downloaded
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source], check=True)
    return {"sdist": next(folder.glob("*.tar.gz")), "wheel": next(folder.glob("*.whl"))}


def package() -> set[str]:
    """Every file of the package."""
    files = [path for path in (ROOT / "mirrorkit").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_they_hold_the_package_and_what_describes_it(built):
    about = f"mirrorkit-{mirrorkit.__version__}"
    wheel = {*zipfile.ZipFile(built["wheel"]).namelist()}
    described = ["METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"]
    assert "mirrorkit/py.typed" in wheel
    assert wheel == package() | {f"{about}.dist-info/{name}" for name in described}
    with tarfile.open(built["sdist"]) as archive:
        sdist = {member.name.removeprefix(f"{about}/") for member in archive if member.isfile()}
    described = ["LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"]
    rest = {name for name in sdist if ".egg-info/" not in name and not name.startswith("tests/")}
    assert rest == package() | {*described}


def test_the_metadata_is_valid(built):
    archive = zipfile.ZipFile(built["wheel"])
    metadata = Metadata.from_email(
        archive.read(f"mirrorkit-{mirrorkit.__version__}.dist-info/METADATA")
    )  # or it raises
    assert (metadata.name, str(metadata.version)) == ("mirrorkit", mirrorkit.__version__)
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description_content_type == "text/markdown"
    assert readme_script() in metadata.description


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_each_works_in_an_empty_environment(built, tmp_path, kind):
    """It has nothing of its own but mirrorkit; what mirrorkit needs is read where the tests have it."""
    venv.create(tmp_path / "venv")
    python, own = tmp_path / "venv/bin/python", next(tmp_path.glob("venv/lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", own, built[kind]], check=True)
    (own / "needed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    (tmp_path / "readme_script.py").write_text(f"{readme_script()}print(mk.__file__)\n")
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MIRRORKIT_DATA")}
    variables["KERAS_HOME"] = str(tmp_path)
    for command in (["-m", "mirrorkit", "--help"], ["readme_script.py"]):
        done = subprocess.run([python, *command], cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(own)
