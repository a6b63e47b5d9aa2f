"""A Keras model as a pure function: a pass that assigns nothing, layer state, random seeds, inputs and outputs."""
