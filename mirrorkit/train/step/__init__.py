"""The step: what a replica computes of its share of a batch, as sums that add up over any number of replicas."""
