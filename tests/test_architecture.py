"""ARCHITECTURE.md says what the code says of its rooms and files, and private.py of names of TensorFlow and Keras."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from test_package import FILES, LAYERS, PACKAGE, ROOMS_OF_TRAIN, tree_of

from mirrorkit import private

ROOT = PACKAGE.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
TESTS = {path.name for path in (ROOT / "tests").rglob("*.py")}

# `NamedTuple`'s own, `os._exit`, and endings of names.
NOT_PRIVATE = {"_asdict", "_replace", "_exit", "_crossentropy", "_loss"}


def _section(title: str) -> str:
    return TEXT.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def _rows(title: str) -> list[list[str]]:
    rows = [line.strip("|").split(" | ") for line in _section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def test_the_rooms_are_those_of_the_package_in_their_order() -> None:
    told = [room for row in _rows("Packages") for room in re.findall(r"`([\w/]+)`", row[1])]
    expected = list(LAYERS)
    at = expected.index("train")
    expected[at : at + 1] = [f"train/{room}" for room in ROOMS_OF_TRAIN]
    assert [room for room in told if room != "train"] == expected
    assert len(_rows("Packages")) < len(expected)  # several to a row: a list as long as the code would be none


def test_every_room_is_there() -> None:
    for room in (*LAYERS, *(f"train/{room}" for room in ROOMS_OF_TRAIN)):
        found = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
        assert found, f"{room} is in the list of rooms, and nowhere else"


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"[\w/]+\.py\b", TEXT))
    assert len(named) > 40
    places = {str(path.relative_to(ROOT)) for path in (*FILES, *(ROOT / "tests").rglob("*.py"))}
    missing = {name for name in named if not any(f"/{place}".endswith(f"/{name}") for place in places)}
    assert not missing


def _private_names(path: Path) -> Iterator[str]:
    """Yield names that begin with an underscore and are defined neither in this file nor by a base class of ours.

    Also private modules.
    """
    tree = tree_of(path)
    defined = DEFINED[path]
    for node in ast.walk(tree):
        own = defined
        if isinstance(node, ast.Attribute):
            names = [node.attr]
            own = INHERITED if _is_own(node.value) else defined
        elif isinstance(node, ast.keyword):
            names = [node.arg or ""]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"_[a-z]\w*", str(node.value)):
            names = [node.value]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in modules if name.startswith(("tensorflow.python", "keras.src")))
            continue
        else:
            continue
        yield from (name for name in names if re.match(r"_(?!mirrorkit_)[a-z]", name) and name not in own | NOT_PRIVATE)


def _is_own(value: ast.expr) -> bool:
    """Whether it is `self`, `cls` or `super()`."""
    name = value.func if isinstance(value, ast.Call) else value
    return isinstance(name, ast.Name) and name.id in ("self", "cls", "super")


def _defined(path: Path) -> set[str]:
    """The names that a file defines; of attributes those of `self`."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return found


DEFINED = {path: _defined(path) for path in FILES}
USERS = [path for path in FILES if path.name != "private.py"]
INHERITED = set().union(*DEFINED.values())


ROWS = (*private.IMPROVEMENTS, *private.NEEDS)
TOLD = {name for row in ROWS for name in (*row.names.split(), *row.owner.split(" or "))}  # names and owners


def test_every_private_name_is_in_the_table() -> None:
    found = {(str(path.relative_to(PACKAGE)), name) for path in USERS for name in _private_names(path)}
    assert found
    untold = {(file, name) for file, name in found if not any(told.startswith(name) for told in TOLD)}
    assert not untold, "a private name of TensorFlow or Keras that private.py does not tell of"


def test_no_name_of_the_table_is_out_of_use() -> None:
    texts = "".join(path.read_text() for path in USERS)
    assert {n for row in ROWS for n in row.names.split() if not re.search(rf"(?<![a-z]){n}", texts)} == set()


# What fails when a private name means something else: its test file.
TESTS_OF = {
    "test_balance.py": "get_global_attribute set_global_attribute",
    "test_by_rows.py": (
        "_value _shape _ndim _path _name _exclude_from_weight_decay_cache _is_excluded_from_weight_decay "
        "_model_variables_moving_average _weight_decay_by_var_key"
    ),
    "test_callback_list.py": "_set_monitor_op",
    "test_callback_states.py": (
        "_batches_seen_since_last_saving _current_epoch _ema_weights_in_model _global_test_batch "
        "_global_train_batch _last_batch_seen _total_batches_seen"
    ),
    "test_custom_gradients.py": (
        "get_current_value get_stateless_scope _graph_mode_decorator _eager_mode_decorator VariableWatcher"
    ),
    "test_functional.py": (
        "TFOptimizer BaseOptimizer apply scale_loss _backend_update_step _backend_apply_gradients "
        "_apply_weight_decay _use_weight_decay _var_key "
        "_learning_rate _trainable_variables"
    ),
    "test_in_process.py": "_allow_run_without_coordinator",
    "test_inlining.py": "__call__",
    "test_keras_compile.py": "_metrics",
    "test_keras_calls.py": "apply scale_loss update_state scale_loss_for_distribution unscale_loss_for_distribution",
    "test_layers_of_keras.py": "stateless_dropout",
    "test_written.py": "_self_",
    "test_model_layout.py": "_initialize",
    "test_non_finite.py": "__call__",
    "test_one_replica.py": "write compute_average_loss num_replicas_in_sync all_reduce all_gather",
    "test_one_update.py": "_watch_accessed_variables __enter__ gradient apply_mask reduce_values",
    "test_own_train_step.py": (
        "assign_add normal uniform truncated_normal shuffle stateless_normal stateless_uniform "
        "stateless_truncated_normal dropout FuncGraph"
    ),
    "test_packed.py": (
        "momentums _accumulated_delta_vars _accumulated_grads _accumulators _average_gradients _m _momentums _u "
        "_velocities _velocity_hats"
    ),
    "test_private_names.py": (
        "signbit argmax take affine_transform _compute_moments_sync _direction _flatten_layers _loss_ids "
        "_compile_config get_keras_mask set_keras_mask global_seed_generator"
    ),
    "test_rehearsal.py": "_handle_data",
    "test_seeds.py": "next",
    "test_shapes.py": "__call__",
    "test_synchronized.py": "call",
    "test_verification.py": "IsMklEnabled",
    "test_workers.py": "_cluster_resolver",
    "test_xla_by_default.py": "is_op_determinism_enabled",
    "test_xla_draws.py": (
        "stateless_random_get_key_counter stateless_random_normal_v2 stateless_random_uniform_v2 get_key_counter_alg"
    ),
}


def test_each_private_name_has_a_reason_and_a_test() -> None:
    assert TESTS_OF.keys() <= TESTS
    for row in ROWS:
        assert row.why, row.names
        assert set(row.names.split()) <= set(" ".join(TESTS_OF.values()).split()), row.names
        assert bool(row.lost) == (row in private.IMPROVEMENTS), row.names


def test_functions_are_replaced_in_one_place() -> None:
    """By `private.replace`, so that the table has them all."""
    replaced = set()
    for path in USERS:
        for node in ast.walk(tree_of(path)):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
            calls = isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "mock.patch.object")
            if calls or any(re.fullmatch(r"(keras|tf)(\.\w+)+", ast.unparse(target)) for target in targets):
                replaced.add(str(path.relative_to(PACKAGE)))
    assert not replaced


def _reached(path: Path) -> set[str]:
    """Return what a file takes from other objects by names that begin with an underscore and are not its own."""
    tree = tree_of(path)
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    own |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    known = own | NOT_PRIVATE | TOLD
    return {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and node.attr not in known
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def test_no_file_reaches_into_the_objects_of_another() -> None:
    """What begins with an underscore is for the file that defines it, or TensorFlow's and Keras's and in the table."""
    reached = {str(path.relative_to(PACKAGE)): found for path in FILES if (found := _reached(path))}
    assert not reached
