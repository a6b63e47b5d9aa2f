"""What an epoch's data is: the global batches of a fit, read on the host or held where they are computed on."""
