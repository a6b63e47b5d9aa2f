from __future__ import annotations

import ast
import functools
import importlib
import json
from pathlib import Path

import pytest
import sizes

import mirrorkit as mk
from mirrorkit import _keras
from mirrorkit.errors import BackendError

PACKAGE = Path(mk.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Imports point up this list only: a module imports from its own line and the lines above.
LAYERS = [
    *("printing", "errors", "_types", "supported", "_keras", "private", "processor"),
    *("stop_signals", "subprocesses", "journal", "recording"),
    *("arguments", "within", "files", "object_storage", "fetching", "reproducible", "variables"),
    *("cluster", "launch", "devices", "strategy", "batching", "timing"),
    *("data", "models", "optim", "parallel", "train"),
    # The upper storey, which looks at a training from outside.
    *(TOOLS := ("checks", "testing", "doctor")),
    "__main__",
]

# The same within train.
ROOMS_OF_TRAIN = [
    *(
        "callback",
        "ambient",
        "reduce",
        "keras_model",
        "replica_code",
        "requirements",
        "totals",
        "step",
        "first_batch",
        "checkpoints",
    ),
    *("input", "calls", "parameter_server", "loop", "export_places", "exporting", "keras_fit"),
]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def layer(path: Path, package: Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def imported_layers(tree: ast.AST, package: str = "mirrorkit") -> set[str]:
    """First name below the package of each import, wherever in the file it stands; "" is the package itself."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are written in full here, not relative"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {
        f"{name}.".removeprefix(f"{package}.").split(".")[0] for name in names if f"{name}.".startswith(f"{package}.")
    }


NAMES = {"__version__", "evaluate", "fit", "predict"}  # of the top level, which are no submodules


def for_type_checkers(tree: ast.AST) -> list[ast.If]:
    """The blocks under `if TYPE_CHECKING`."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]


def test_submodules_load_lazily_and_type_checkers_know_them():
    tree = tree_of(PACKAGE / "__init__.py")
    blocks = for_type_checkers(tree)
    assert {name for block in blocks for name in imported_layers(block)} == {*mk.__all__} - NAMES
    # `supported` holds the version, and imports nothing.
    assert imported_layers(ast.Module([node for node in tree.body if node not in blocks], [])) == {"supported"}


def imports_of_lower_ones(package: Path, layers: list[str]) -> list[str]:
    """The imports of a package's files that point down the list of its layers."""
    found = []
    for path in package.rglob("*.py"):
        if path != package / "__init__.py":
            here = layer(path, package)
            assert here in layers, f"{here} has no place yet: give it one in the list"
            name = ".".join(package.relative_to(PACKAGE.parent).parts)
            below = imported_layers(tree_of(path), name) - set(layers[: layers.index(here) + 1])
            found += [f"{path.relative_to(PACKAGE)}: {other}" for other in sorted(below)]
    return found


def test_imports_point_up_only():
    assert not imports_of_lower_ones(PACKAGE, LAYERS)
    assert not imports_of_lower_ones(PACKAGE / "train", ROOMS_OF_TRAIN)


def test_no_training_needs_a_tool_and_no_tool_another():
    imported = {(layer(path), name) for path in FILES for name in imported_layers(tree_of(path))}
    users = {(here, name) for here, name in imported if name in TOOLS and name != here}
    assert not {use for use in users if use[0] not in ("__init__", "__main__")}, "what more of them need lies lower"


# Inner files of a package that another one may import: the command line starts without TensorFlow, which a package's
# face would load; `onednn` is a module whose functions say little without its name.
INNER = {
    ("__main__.py", "doctor/command.py"),
    ("__main__.py", "launch/command.py"),
    ("doctor/probe.py", "devices/onednn.py"),
    ("strategy/creation.py", "devices/onednn.py"),
}


def inner_files(tree: ast.AST) -> set[str]:
    """The files within packages of mirrorkit from which something is imported."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mirrorkit"):
            module = (node.module or "").split(".")[1:]
            for alias in node.names:
                candidates = [PACKAGE.joinpath(*module, alias.name), PACKAGE.joinpath(*module)]
                found |= {path.with_suffix(".py") for path in candidates if path.with_suffix(".py").is_file()}
    return {str(path.relative_to(PACKAGE)) for path in found if path.parent != PACKAGE}


def test_another_package_is_reached_by_its_face():
    reached = set()
    for path in FILES:
        here = str(path.relative_to(PACKAGE))
        files = inner_files(tree_of(path))
        reached |= {(here, file) for file in files if file.split("/")[0] != here.split("/")[0]}
    past = reached - INNER
    assert not past, "files that reach past the __init__.py of another package"
    assert reached == INNER, "an exception that nothing needs"


def test_no_public_name_hides_a_module():
    for package in {path.parent for path in FILES if path.parent != PACKAGE}:
        name = ".".join(package.relative_to(PACKAGE.parent).parts)
        module = importlib.import_module(name)
        hidden = {path.stem for path in package.glob("*.py")} & set(getattr(module, "__all__", ()))
        for each in hidden:
            assert getattr(module, each) is importlib.import_module(f"{name}.{each}"), f"{each} of {name} hides one"


def test_only_one_place_imports_keras():
    for path in FILES:
        tree = tree_of(path)
        harmless = {id(node) for block in for_type_checkers(tree) for node in ast.walk(block)}
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            past = [module for module in modules if module.split(".")[0] == "keras" and id(node) not in harmless]
            assert not past or path.name == "_keras.py", f"{path} imports keras past _keras.py"


def test_no_room_outgrows_its_ceiling():
    assert sizes.problems(sizes.sizes(), sizes.read_ceilings()) == []


def test_the_ceilings_see_growth_and_what_has_left():
    ceilings = {"data": 1000, "train/step": 1000, "files.py": 1000, "gone": 50}
    found = {"data": 1001, "train/step": 870, "files.py": 869, "new": 5}
    assert [line.partition(" tokens")[0] for line in sizes.problems(found, ceilings)] == [
        *("data: 1001", "files.py: 869", "gone: 0", "new: 5"),
    ]
    assert sizes.lowered(found, ceilings) == {"data": 1000, "train/step": 884, "files.py": 883}


def test_comments_docstrings_and_line_breaks_are_free():
    source = 'def f(x):\n    """Text."""\n    # more\n    return [\n        x,\n    ]\n'
    assert sizes.tokens(source) == 11  # def f ( x ) : return [ x , ]


def test_no_two_modules_of_the_tests_have_one_name():
    """pytest puts their folders on one path: the second of that name would be the first."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_importing_mirrorkit_changes_nothing(run_python):
    result = run_python(
        """
        import json, logging, os, sys, threading
        threads, set_ones = threading.active_count(), set()
        sys.addaudithook(lambda event, args: event == "os.putenv" and set_ones.add(args[0].decode()))
        import mirrorkit as mk
        mk.errors, mk.batching, mk.cluster.detect, mk.launch.launch
        mk.timing.Timer, mk.timing.Throughput, mk.timing.profile, mk.timing.warm_up
        import mirrorkit.__main__
        print(json.dumps({
            # numpy sets one for the time of its import; what stays set counts
            "environment": sorted(set_ones & set(os.environ)),
            "threads": threads == threading.active_count(),
            "handlers": [len(logging.getLogger(name).handlers) for name in (None, "mirrorkit")],
            "level": logging.getLogger("mirrorkit").level,
            "heavy": sorted({"tensorflow", "keras"} & set(sys.modules)),
        }))
        """
    )
    nothing = {"environment": [], "threads": True, "handlers": [0, 0], "level": 0, "heavy": []}
    assert result.json() == nothing


def test_every_public_submodule_loads_and_offers_what_it_says():
    for name in {*mk.__all__} - NAMES:
        module = getattr(mk, name)
        assert module is importlib.import_module(f"mirrorkit.{name}")
        assert module.__doc__
        for public in getattr(module, "__all__", []):
            assert hasattr(module, public), f"mirrorkit.{name}.__all__ names {public}, which is not there"
    assert all(callable(getattr(mk, name)) for name in NAMES - {"__version__"})


def test_an_unknown_submodule_names_the_known_ones():
    with pytest.raises(AttributeError, match=r"'trian'.*batching.*train"):
        _ = mk.trian


@pytest.mark.parametrize(
    ("variable", "value", "cure"),
    [
        ("TF_USE_LEGACY_KERAS", "1", "Unset TF_USE_LEGACY_KERAS"),
        ("KERAS_BACKEND", "jax", "Set KERAS_BACKEND=tensorflow"),
        ("KERAS_HOME", "a folder", "configuration file selects 'numpy'. Set KERAS_BACKEND=tensorflow"),
    ],
)
def test_a_keras_that_cannot_be_used_is_an_error_with_the_cure(monkeypatch, variable, value, cure):
    monkeypatch.setenv(variable, value)
    if variable == "KERAS_HOME":  # whose keras.json Keras reads when it is imported
        monkeypatch.setattr(_keras.keras.config, "backend", lambda: "numpy")
    with pytest.raises(BackendError, match=cure):
        _keras._import_keras()


@pytest.mark.slow  # a process; above is the function, which the module calls when it is imported
def test_that_error_comes_at_first_use(run_python, tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "numpy"}))
    result = run_python(
        "import mirrorkit; mirrorkit.strategy", check=False, env={"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": None}
    )
    assert result.returncode == 1
    assert "BackendError" in result.stderr
    assert "KERAS_BACKEND=tensorflow" in result.stderr


def test_an_old_keras_is_an_error_that_names_both_versions(monkeypatch):
    monkeypatch.setattr(_keras.keras, "__version__", "3.9.2")
    with pytest.raises(BackendError, match=r"3\.10 or newer, found 3\.9\.2"):
        _keras._import_keras()
