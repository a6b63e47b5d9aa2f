"""Where a step's operations and bytes would be on GPUs, found out on any machine; public as `mk.checks.placement`."""
