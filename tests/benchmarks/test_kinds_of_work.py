"""examples/benchmarks/kinds_of_work.py on little work, its models, its tables and what it writes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_names_the_kinds_as_they_are(script, monkeypatch):
    models = script("kinds.models")
    page = (ROOT / "docs/speed-kinds.md").read_text()
    for name, kind in models.KINDS.items():
        assert f"| {name} | {kind.what} | {kind.batch:,} |" in page
    assert page.count(" |\n", 0, page.index("MobileNetV2 and")) == 1 + len(models.KINDS)
    assert models.ZIPF == 1.0
    assert round(models.KINDS["mlp-21m"].model().count_params() / 1e6) == 21
    nets = [kind.model() for kind in models.BATCH_NORM.values()]
    norms = [[layer for layer in net.layers if "synchronized" in layer.get_config()] for net in nets]
    assert [[layer.synchronized for layer in layers] for layers in norms] == [[True] * 20, [False] * 20]
