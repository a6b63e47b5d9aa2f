"""The examples of docstrings run, given what the sentence around them speaks of, and print what they say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_docs import promised

import mirrorkit as mk

ROOT = Path(mk.__file__).parent
NOT_RUN = {  # and where their code is run instead
    "checks/__init__.py": "parts of it: the examples of the functions",
    "checks/non_finite.py find_non_finite": "nothing is to be found: tests/checks",
    "cluster/__init__.py": "a cluster: tests/cluster",
    "data/__init__.py": "MNIST: tests/data",
    "data/image_files.py ImageFolder": "files: docs/data.md",
    "data/mixture.py Mix": "files: docs/imbalanced.md",
    "data/own_function.py FromFunction": "files: docs/data.md",
    "data/parquet_files.py Parquet": "files: docs/data.md",
    "data/random_access.py RandomAccess": "files: docs/data.md",
    "data/record_files.py write_records": "a camera: docs/data.md",
    "data/sources.py load": "MNIST: tests/data",
    "data/tfrecords.py Records": "files: docs/data.md",
    "devices/__init__.py": "a GPU: tests/devices",
    "devices/layout.py set_memory_growth": "the first line of a program: docs/devices.md",
    "launch/launcher.py on_ray": "Ray: tests/launch",
    "models/registry.py register": "a sketch of a model: docs/models.md",
    "optim/__init__.py": "the example of the function",
    "parallel/balance.py balanced_rules": "GPUs: tests/parallel",
    "parallel/layout.py Layout": "GPUs: docs/model-parallel.md",
    "parallel/partitioned_table.py PartitionedTable": "a cluster: tests/train/parameter_server/test_page.py",
    "parallel/recompute.py Recompute": "a sketch of a model: docs/model-parallel.md",
    "reproducible.py": "it changes the whole process: tests/test_reproducible.py",
    "reproducible.py enable": "it changes the whole process: tests/test_reproducible.py",
    "strategy/__init__.py": "parts of it: the examples of the functions",
    "strategy/barrier.py wait_for_all": "workers: tests/multiworker",
    "strategy/lost.py naming_lost_workers": "a custom loop: tests/multiworker",
    "testing/__init__.py": "a process: tests/testing",
    "testing/local.py local_cluster": "a cluster: docs/parameter-server.md",
    "timing/__init__.py": "parts of it: the examples of the functions",
    "timing/__init__.py warm_up": "a custom loop: docs/timing.md",
    "train/keras_model/seeds.py seeds_by_replica": "part of a step: docs/custom-loop.md",
    "train/reduce/gathering.py all_gather": "part of a loss: docs/step.md",
    "train/reduce/update.py Update": "part of a step: docs/custom-loop.md",
    "train/step/step.py Step.from_loss": "part of a script: docs/step.md",
    "__init__.py": "the first lines of a program: README.md",
}
WITHOUT = {  # public names without an example
    "data.augment.Augmentation": "an alias of a type: functions such as those of mk.data.augment",
    "devices.Devices": "an alias of types: the argument of mk.devices.resolve",
}


def examples() -> Iterator[tuple[str, str]]:
    """Where each example stands, and its lines."""
    for path in sorted(ROOT.rglob("*.py")):
        yield from examples_in(ast.parse(path.read_text()), [path.relative_to(ROOT).as_posix()])


def examples_in(node: ast.AST, names: list[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
        for code in re.findall(r"^```python\n(.*?)^```", ast.get_docstring(node) or "", re.MULTILINE | re.DOTALL):
            yield f"{names[0]} {'.'.join(names[1:])}".strip(), code
        for child in node.body:
            yield from examples_in(child, [*names, getattr(child, "name", "")])


EXAMPLES = dict(examples())


@pytest.fixture
def given(strategy_of) -> dict[str, object]:
    """What examples take as given."""
    strategy = strategy_of("mirrored", 2)
    digits = mk.data.synthetic(train=256, test=64)
    train, test = (mk.data.batches(part, global_batch_size=64) for part in (digits.train, digits.test))
    with strategy.scope():
        model, optimizer = mk.models.create("mlp", units=[8]), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def make_step():
        return mk.train.Step(mk.models.create("linear"), keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])

    step = mk.train.Step(model, optimizer, loss=loss, metrics=["accuracy"])
    return {
        **{"keras": keras, "mk": mk, "np": np, "tf": tf, "Timer": mk.timing.Timer, "Throughput": mk.timing.Throughput},
        **{"strategy": strategy, "digits": digits, "train": train, "test": test, "model": model},
        **{"optimizer": optimizer, "loss": loss, "step": step, "loop": mk.train.Loop(strategy, step)},
        **{"images": digits.train.images, "labels": digits.train.labels, "split": digits.train},
        **{name: np.zeros((256, 3), np.float32) for name in ("left", "right", "tokens", "days")},
        **{"same": np.zeros(256, np.int64), "x": np.ones((32, 4), np.float32), "y": np.ones((32, 1), np.float32)},
        **{"step_fn": lambda batch: None, "train_one_epoch": lambda: None, "make_step": make_step},
        "gradients": [tf.ones(weight.shape) for weight in model.trainable_variables],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in NOT_RUN])
def test_an_example_runs_and_prints_what_it_says(name, given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[name], name, "exec"), given)
    printed = capsys.readouterr().out.splitlines()
    said = promised(EXAMPLES[name])
    assert [line for line in said if line not in printed] == []


def test_an_example_that_is_not_run_is_python_and_is_known():
    assert NOT_RUN.keys() <= EXAMPLES.keys()
    for name in NOT_RUN:
        compile(EXAMPLES[name], name, "exec")


def public_names(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Each public name, such as "train.Step", and what it names."""
    own = [name for name, of in vars(module).items() if getattr(of, "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
        of = getattr(module, name)
        if isinstance(of, ModuleType):
            yield from public_names(of)
        else:
            yield f"{module.__name__}.{name}".removeprefix("mirrorkit."), of


def test_every_public_name_has_an_example():
    modules = [getattr(mk, name) for name in mk.__all__ if not name.startswith("_")]
    names = dict(pair for module in modules for pair in public_names(module))
    assert {name for name, of in names.items() if "```python\n" not in (of.__doc__ or "")} == WITHOUT.keys()
