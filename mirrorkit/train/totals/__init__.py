"""What a step sums up for its logs: losses and metrics, and whether they can take the shapes of the data."""
