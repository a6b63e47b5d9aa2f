"""What gpu.py measures, and what it runs in other processes."""
