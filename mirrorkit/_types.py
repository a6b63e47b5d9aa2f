"""Names for what TensorFlow and Keras give no type: one place for `Any`, and a word that says what is meant.

For annotations only: at run time most of these are strings, so that no file loads TensorFlow or Keras through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# What tf.nest takes. A recursive union would have to be narrowed before each use, and TensorFlow does not type tf.nest.
Nest: TypeAlias = Any  # of tensors, or of anything that stands for one
Batch: TypeAlias = Nest  # x, (x, y) or (x, y, sample_weight), as a data set yields it; or what a share makes it from
Spec: TypeAlias = Nest  # of tf.TypeSpec: a data set's element_spec
Sums: TypeAlias = Nest  # of float tensors of static shape, which add up over the replicas
PerOutput: TypeAlias = Any  # one thing for the model's output, or for several a list in order or a dict by name
Json: TypeAlias = Any  # what json.loads returns

LogValue: TypeAlias = Any  # a number; of some metrics an array with a value for each class

Logs: TypeAlias = "dict[str, tf.Tensor]"
TensorLike: TypeAlias = "tf.types.experimental.TensorLike"  # what tf.convert_to_tensor takes
ConcreteFunction: TypeAlias = "tf.types.experimental.ConcreteFunction"

KerasCallback: TypeAlias = "keras.callbacks.Callback"
KerasLayer: TypeAlias = "keras.layers.Layer"
KerasMetric: TypeAlias = "keras.metrics.Metric"
KerasModel: TypeAlias = "keras.Model"
KerasOptimizer: TypeAlias = "keras.optimizers.Optimizer"
KerasTensor: TypeAlias = "keras.KerasTensor"
Loss: TypeAlias = Any  # a keras.losses.Loss, or a function of (y_true, y_pred) that returns one value per example
Metric: TypeAlias = Any  # a keras.metrics.Metric, its name, or a function as for a loss
KerasVariable: TypeAlias = "keras.Variable"
Variable: TypeAlias = "keras.Variable | tf.Variable"
