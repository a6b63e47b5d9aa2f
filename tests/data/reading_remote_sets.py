"""Reads sets at an address and says what it read; run by the tests: reading_remote_sets.py ROOT."""

from __future__ import annotations

import sys

from remote_sets import BATCH, KINDS, digest

READ = "records", "gzip", "foreign, told", "table"


def main() -> None:
    (root,) = sys.argv[1:]
    for kind in READ:
        recipe = KINDS[kind](root, global_batch_size=BATCH, shuffle=True)
        print(kind, digest(recipe, None, 0), sep=": ", flush=True)


if __name__ == "__main__":
    main()
