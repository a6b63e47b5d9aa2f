"""Old spellings of arguments of `mk.bench`."""

from __future__ import annotations

import inspect

import pytest

from mirrorkit import bench
from mirrorkit.bench.old_names import takes_old
from mirrorkit.errors import ArgumentError


def test_the_old_name_is_the_new_argument_and_a_warning_at_the_callers_line():
    @takes_old(device="devices")
    def measure(*, devices=None):
        return devices

    with pytest.warns(
        DeprecationWarning, match=r"mk\.bench\.measure\(device=\.\.\.\) is deprecated.*use devices="
    ) as seen:
        assert measure(device="gpu") == "gpu"
    assert seen[0].filename == __file__
    assert measure(devices="cpu") == "cpu"
    with pytest.raises(ArgumentError, match="both devices= and device="):
        measure(device="gpu", devices="cpu")


@pytest.mark.parametrize("benchmark", [bench.scaling, bench.strategies, bench.collectives, bench.gpu])
def test_every_benchmark_takes_its_old_names(benchmark):
    with pytest.warns(DeprecationWarning, match="use devices="), pytest.raises(ArgumentError, match="devices='tpu'"):
        benchmark(device="tpu")
    if benchmark is not bench.collectives:
        with pytest.warns(DeprecationWarning, match="use global_batch_size="), pytest.raises(ArgumentError):
            benchmark(batch_size=64, devices="tpu")
    assert not {"device", "batch_size"} & set(inspect.signature(benchmark).parameters)
