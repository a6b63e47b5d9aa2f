"""The work of kinds_of_work.py: its models and data, and who trains them."""
