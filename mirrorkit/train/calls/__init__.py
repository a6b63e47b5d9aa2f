"""Compiled calls of many steps: on the replicas of this process, and how long they are."""
