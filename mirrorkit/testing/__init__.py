"""Helpers to test distributed training on one machine: virtual replicas and fresh processes."""
