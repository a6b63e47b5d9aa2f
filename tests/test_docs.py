"""The pages: links, commands, code and dates."""

from __future__ import annotations

import datetime
import functools
import inspect
import re
import runpy
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from claims import MEASURED, PAGES, checked, compares

import mirrorkit
from mirrorkit.data import sources

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FIRST_READ = ("README.md",)  # the other pages run in the slow set
OWN_PROCESS = ("devices.md", "watching.md")  # settings before TensorFlow has started; what MLflow and W&B leave behind
NOT_RUN = {  # blocks marked `py`, and where their code is run instead
    "checkpoints.md": "addresses of buckets: tests/train/checkpoints/test_bucket.py, tests/kills/test_kills.py",
    "checks.md": "it changes the whole process: tests/test_reproducible.py",
    "examples.md": "they show the examples: tests/test_examples.py",
    "multi-worker.md": "a strategy of real workers: tests/multiworker",
    "parameter-server.md": "a cluster in a process of its own: tests/train/parameter_server/test_page.py",
    "porting.md": "scripts of Horovod and PyTorch, before the port",
}


def python_only(page: str) -> str:
    """The Python blocks of a page, one namespace; other lines become empty, so that line numbers stay the page's."""
    lines, inside = [], False
    for line in page.splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return "\n".join(lines) + "\n"


def promised(source: str) -> list[str]:
    """What the page says that its prints show, in order."""
    return re.findall(r"^\s*print\(.*\)  # (.+)$", source, re.MULTILINE)


RUN = [
    pytest.param(page, id=page.name, marks=[] if page.name in FIRST_READ else pytest.mark.slow)
    for page in PAGES
    if python_only(page.read_text()).strip()
]


@pytest.mark.parametrize("page", RUN)
def test_blocks_run_and_print_what_the_page_says(page, tmp_path, monkeypatch, capfd):
    source = python_only(page.read_text())
    script = tmp_path / f"{page.stem}.py"  # a file, not exec: tf.function reads the source of what it converts
    script.write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRRORKIT_DATA", raising=False)  # digits are drawn: fewer than MNIST has
    if page.name in FIRST_READ:
        monkeypatch.setattr(sources, "synthetic", functools.partial(sources.synthetic, train=1280))
    if page.name in OWN_PROCESS:
        printed = mirrorkit.testing.run_in_fresh_process(script).stdout.splitlines()
    else:
        runpy.run_path(str(script))
        printed = capfd.readouterr().out.splitlines()
    remaining = iter(printed)
    for expected in promised(source):
        assert any(line == expected for line in remaining), f"{expected!r} is not printed (in this order): {printed}"


def test_code_that_is_not_run_is_python_and_is_known():
    blocks = [
        (page.name, code) for page in PAGES for code in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    assert {name for name, _ in blocks} == set(NOT_RUN)
    for name, code in blocks:
        if name != "examples.md":  # what they include is read by mkdocs
            compile(code, name, "exec")


def sides(page):
    """What a ```diff block shows: the script before, and after."""
    lines = re.search(r"^```diff\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[1].splitlines()
    return ["\n".join(line[1:] for line in lines if not line.startswith(other)) for other in ("+", "-")]


def test_the_lines_that_change_in_a_script_train_on_two_replicas_what_fit_trains_on_one(monkeypatch, strategy_of):
    before, after = sides(ROOT / "README.md")
    assert sides(DOCS / "index.md") == [before, after]
    digits = mirrorkit.data.synthetic(train=300, test=1).train  # the last batch is a smaller one
    pixels = digits.images[..., 0], digits.labels
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: (pixels, pixels))
    weights = []
    for script, strategy in ((before, strategy_of("one_device", 1)), (after, strategy_of("mirrored", 2))):
        monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda strategy=strategy: strategy)
        keras.utils.set_random_seed(0)
        names: dict[str, object] = {}
        exec(script.replace("epochs=5", "epochs=5, shuffle=False"), names)  # each shuffles in another order
        weights.append(names["model"].get_weights())
    first, *_ = weights[0]
    assert np.ptp(first) > 0.1  # a Dense layer starts with less
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def inner_links(page):
    """The (path, heading) of each link to another page or file, or to a heading of this page."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [tuple((*link.split("#"), "")[:2]) for link in links if "://" not in link]


def test_links_and_commands_lead_somewhere():
    targets = [(page, page.parent / path) for page in PAGES for path, _ in inner_links(page)]
    assert len(targets) > 100
    assert not [(page.name, target) for page, target in targets if not target.exists()]
    inside = [(page, target) for page, target in targets if page != PAGES[0]]
    left = [(page.name, target) for page, target in inside if not target.resolve().is_relative_to(DOCS)]
    assert not left, "dead on the site"
    scripts = [
        (page.name, script) for page in PAGES for script in re.findall(r"python (\S+/\S+\.py)", page.read_text())
    ]
    assert not [(page, script) for page, script in scripts if not (ROOT / script).exists()]
    shown = [
        (page.name, path) for page in PAGES for path in re.findall(r'^--8<-- "(.+)"$', page.read_text(), re.MULTILINE)
    ]
    assert shown
    assert not [(page, path) for page, path in shown if not (ROOT / path).exists()]


def anchors(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_to_a_heading_find_it():
    found = {page: anchors(page) for page in PAGES}
    links = [
        (page, (page.parent / path).resolve() if path else page, to) for page in PAGES for path, to in inner_links(page)
    ]
    assert not [(page.name, target.name, to) for page, target, to in links if to and to not in found[target]]


def pages_of(nav):
    """The pages of a `nav`, in its order."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in nav for page in pages_of(entry if not isinstance(entry, dict) else [*entry.values()])]


def test_every_page_is_in_the_navigation_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_of(nav)) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES[1:])


def test_every_public_module_has_a_reference_page():
    shown = {
        page.stem: re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE) for page in (DOCS / "api").glob("*.md")
    }
    expected = {name: [f"mirrorkit.{name}"] for name in mirrorkit.__all__ if not name.startswith("_")}
    expected["fit"] += [*expected.pop("evaluate"), *expected.pop("predict")]
    assert expected.items() <= shown.items()


def test_a_reference_page_in_the_order_of_use_leaves_nothing_out():
    pages = {
        page.stem: yaml.safe_load(page.read_text().partition("options:")[2] or "{}")
        for page in (DOCS / "api").glob("*.md")
    }
    listed = {name: options["members"] for name, options in pages.items() if options}
    assert {"train", "data", "strategy"} <= listed.keys()
    for name, members in listed.items():
        module = getattr(mirrorkit, name)
        assert sorted(members) == sorted(n for n in module.__all__ if not inspect.ismodule(getattr(module, n)))


def test_every_environment_variable_is_listed():
    code = [path.read_text() for path in (ROOT / "mirrorkit").rglob("*.py")]
    read = {name for text in code for name in re.findall(r"MIRRORKIT_[A-Z_]+", text)}
    assert read == set(re.findall(r"MIRRORKIT_[A-Z_]+", (DOCS / "environment.md").read_text()))


def test_every_error_is_listed():
    errors = {name for name in dir(mirrorkit.errors) if name.endswith("Error")}
    assert errors == {
        *re.findall(r"^\| `(\w+Error)`", (DOCS / "errors.md").read_text(), re.MULTILINE),
        "MirrorkitError",
    }


def test_every_model_is_listed_with_its_size():
    rows = re.findall(r"^\| `(\w+)` .*\| ([\d,]+) \| ([\d,]+) \|", (DOCS / "models.md").read_text(), re.MULTILINE)
    builders = {name: getattr(mirrorkit.models, name).__doc__ for name in mirrorkit.models.__all__}
    documented = r"Parameters: ([\d,]+)\s+FLOPs per image: ([\d,]+)"
    assert {name: sizes for name, *sizes in rows} == {
        name: list(found[0]) for name, text in builders.items() if (found := re.findall(documented, text))
    }


def test_the_home_of_the_repository_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_each_cell_of_the_comparison_names_its_source():
    compared = [line for line in (DOCS / "why.md").read_text().splitlines() if line.startswith("| ")]
    assert len(compared) > 10
    cells = [cell.strip() for row in compared[1:] for cell in row.strip("|").split("|")[1:]]
    assert [cell for cell in cells if "](" not in cell] == []


# --- pages that compare mirrorkit with other projects say with which versions, and when that was checked


TODAY = datetime.date(2026, 11, 27)


@pytest.mark.parametrize("page", [page for page in PAGES if compares(page.read_text())], ids=lambda page: page.name)
def test_a_comparison_says_when_it_was_checked(page):
    if page.name in MEASURED:
        assert re.search(r"\b202\d-\d\d-\d\d\b", page.read_text())
    else:
        lines = checked(page.read_text())
        assert lines, f"{page.name} lacks a line such as 'Checked on {TODAY}: Keras 3.15.1.'"
        assert all(re.search(r"[a-z] \d+\.\d+", what) for _, what in lines), "no version"
        assert all(date <= datetime.date.today() for date, _ in lines)
