"""What the benchmarks share: processes, measurements in turns, reports, charts, and what a figure is read with."""
