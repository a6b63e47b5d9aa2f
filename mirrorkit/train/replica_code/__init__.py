"""A Keras model's own `train_step` on one replica: what it reads, writes and draws, as on all rows of the batch."""
