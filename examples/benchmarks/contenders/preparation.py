"""The data of all contenders, written once: in a process of its own, so that the one that measures stays small."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mirrorkit as mk


class Preparation:
    """Writes what `contenders.work.Work` reads."""

    def write(self, folder: str, data: str, data_dir: str | None, examples: int, records: bool) -> tuple[str, int]:
        """Write arrays, and shards where asked; return the name of the set and the number of its examples."""
        if data == "synthetic":
            digits = mk.data.synthetic(train=examples, test=1)
        else:
            fallback = "synthetic" if data == "auto" else None
            digits = mk.data.load("mnist", data_dir=data_dir, fallback=fallback)
        split = digits.train[:examples]
        np.save(Path(folder, "images.npy"), split.images)
        np.save(Path(folder, "labels.npy"), split.labels)
        if records:
            mk.data.write_records(split, folder, num_files=8, prefix="train")
        return digits.name, len(split)
