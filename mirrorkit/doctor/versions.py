"""The versions that are installed, read without importing TensorFlow or Keras."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata

from mirrorkit.doctor.finding import Finding
from mirrorkit.supported import KERAS, TENSORFLOW, Version, __version__, written

# Distributions that install the package `tensorflow`: two of them overwrite each other's files.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly", "tf-nightly-cpu")
_OTHER_SYSTEMS = ("tensorflow-macos", "tensorflow-intel")  # these come with "tensorflow", or in its place


def installed(name: str) -> str | None:
    """Return the version of a distribution; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def tensorflow() -> str | None:
    """Return the version of TensorFlow, under whichever name it is installed."""
    return next((version for name in (*_TENSORFLOWS, *_OTHER_SYSTEMS) if (version := installed(name))), None)


def in_a_line() -> str:
    """Return what `--version` prints."""
    none = "not installed"
    packages = f"TensorFlow {tensorflow() or none}, Keras {installed('keras') or none}"
    return f"mirrorkit {__version__}, {packages}, Python {platform.python_version()}"


def packages() -> Iterator[Finding]:
    """Check that TensorFlow and Keras are there, in versions that mirrorkit runs on, with what they require."""
    yield Finding("Python", "ok", f"{platform.python_version()}, mirrorkit {__version__}")
    yield _in_range("TensorFlow", "tensorflow", tensorflow(), *TENSORFLOW)
    several = [f"{name} {version}" for name in _TENSORFLOWS if (version := installed(name))]
    if len(several) > 1:
        cure = f"Uninstall all of them (pip uninstall {' '.join(_TENSORFLOWS)}), then install one."
        yield Finding("TensorFlow", "warning", f"{' and '.join(several)} overwrite each other's files", cure)
    yield _in_range("Keras", "keras", installed("keras"), *KERAS)
    yield from _requirements(*(name for name in (*_TENSORFLOWS, "keras", "mirrorkit") if installed(name)))


def _in_range(name: str, distribution: str, version: str | None, oldest: Version, newest: Version) -> Finding:
    cure = f"pip install --upgrade '{distribution}>={written(oldest)}'"
    if version is None:
        return Finding(name, "failure", "is not installed", cure)
    match = re.match(r"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else newest
    if number < oldest:
        return Finding(name, "failure", f"{version}; mirrorkit needs {written(oldest)} or newer", cure)
    if number > newest:
        found = f"{version}, newer than what this mirrorkit was tested with ({written(oldest)} to {written(newest)})"
        after = written((newest[0], newest[1] + 1))
        return Finding(name, "warning", found, f"If something fails: pip install '{distribution}<{after}'")
    return Finding(name, "ok", version)


def _requirements(*distributions: str) -> Iterator[Finding]:
    """Compare what these distributions require, NumPy and protobuf among it, with what is installed."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding("requirements", "failure", "packaging is not installed", "pip install packaging")
        return
    wrong = 0
    for distribution in distributions:
        for text in metadata.requires(distribution) or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = installed(requirement.name)
            if version is not None and requirement.specifier.contains(version, prereleases=True):
                continue
            if version is None and requirement.name == "tensorflow" and tensorflow():
                continue  # under another name
            wrong += 1
            asked = f"{requirement.name}{requirement.specifier}"
            found = f"{distribution} needs {asked}; found {version or 'none'}"
            yield Finding("requirements", "warning" if version else "failure", found, f"pip install '{asked}'")
    if not wrong:
        yield Finding("requirements", "ok", f"what {', '.join(distributions)} need is installed")
