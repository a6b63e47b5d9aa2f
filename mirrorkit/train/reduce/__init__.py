"""The mechanism on which every step stands: one reduction of the replicas' sums, then the same update everywhere."""
