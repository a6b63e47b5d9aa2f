"""Training under parameter servers: calls that are cut into pieces, which the workers take as they become free."""
