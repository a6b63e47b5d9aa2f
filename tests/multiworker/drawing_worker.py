"""One of two workers: writes all that a training, its validation, an evaluation and two predictions draw."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import mirrorkit as mk

sys.path.append(str(Path(__file__).parents[1] / "train"))
from drawing import all_draws, state_after


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    strategy = mk.strategy.create("multi_worker", devices="cpu")
    drawn = {kind: all_draws(strategy, kind) for kind in ("batches", "resident", "dataset")}
    draws = {kind: {name: values.tolist() for name, values in of.items()} for kind, of in drawn.items()}
    state = state_after(strategy)
    (folder / f"found{mk.strategy.worker_index(strategy)}.json").write_text(
        json.dumps({"draws": draws, "state": state})
    )


if __name__ == "__main__":
    main()
