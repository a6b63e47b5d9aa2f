from __future__ import annotations

import pytest

from mirrorkit import processor

TWO_CORES = """processor\t: 0
model name\t: AMD EPYC 9654
flags\t\t: fpu sse2 avx avx2 {more}

processor\t: 1
model name\t: AMD EPYC 9654
flags\t\t: fpu sse2 avx avx2 {more}
"""


@pytest.mark.parametrize(
    ("more", "vectors"), [("", "AVX2"), ("avx512f", "AVX-512"), ("avx512f avx512_vnni", "AVX-512 VNNI")]
)
def test_the_model_names_the_widest_vectors(tmp_path, monkeypatch, more, vectors):
    info = tmp_path / "cpuinfo"
    info.write_text(TWO_CORES.format(more=more))
    monkeypatch.setattr(processor, "_INFO", info)
    assert processor.model() == f"AMD EPYC 9654 ({vectors})"
    assert processor.flags() == {"fpu", "sse2", "avx", "avx2", *more.split()}


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(processor.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    assert processor.cores() == 3
    monkeypatch.delattr(processor.os, "sched_getaffinity")
    assert processor.cores() == 64


def test_where_linux_tells_nothing_python_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "_INFO", tmp_path / "no-such-file")
    monkeypatch.setattr(processor.platform, "processor", lambda: "arm")
    assert processor.model() == "arm"
    assert processor.flags() == frozenset()
