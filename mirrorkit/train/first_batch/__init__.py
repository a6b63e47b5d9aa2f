"""Checks of the first global batch: whether N replicas, and all workers, give what one gives.

Nothing that trains, evaluates or predicts uses what is computed here: without these checks all results are the same.
"""
