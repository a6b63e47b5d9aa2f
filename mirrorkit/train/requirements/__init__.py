"""What a step requires to mean the same on every replica. No result depends on it: it refuses, and computes nothing."""
