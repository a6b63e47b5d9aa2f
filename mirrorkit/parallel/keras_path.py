"""The path that Keras is about to give a variable."""

# Private to Keras: TensorFlow's variable creators learn a variable's name alone ("kernel"), and Keras knows the path
# of its layers only while it builds them. `tests/parallel/test_layout.py` fails when it moves.
from keras.src.backend.common.name_scope import current_path as current_path
