"""A layer whose activations are computed again in the backward pass instead of being kept: less memory, more time."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from mirrorkit import private
from mirrorkit._keras import keras
from mirrorkit._types import Json, KerasLayer, Nest
from mirrorkit.errors import StepError
from mirrorkit.variables import ValueScope


@keras.saving.register_keras_serializable("mirrorkit")
class Recompute(keras.layers.Layer):  # type: ignore[name-defined]
    """Wraps a layer or model to keep only its inputs for the backward pass, which recomputes the rest.

    ```python
    for number in range(24):
        x = mk.parallel.Recompute(transformer_block(number))(x)
    ```

    Values and gradients are those of the block itself, and Dropout drops the same units both times. A training step
    takes about a third longer, and holds the activations of one block at a time (Chen et al. 2016, arXiv:1604.06174).
    `keras.remat` and `tf.recompute_grad` do this for a function; a layer can be saved.

    Args:
        block: a Keras layer or model. Its inputs must be tensors or nests of them.
        **options: of `keras.layers.Layer`, such as `name`.

    Raises:
        StepError: `block` is not a Keras layer; or, when called, it assigns a trainable weight, or a variable that is
            not its own.
    """

    def __init__(self, block: KerasLayer, **options: Any) -> None:
        if not isinstance(block, keras.layers.Layer):
            raise StepError(f"Recompute wraps a Keras layer or model, found {block!r}.")
        # The block has a policy of its own, and casts what it is given.
        super().__init__(**{"dtype": "float32", "autocast": False, **options})
        self.block = block
        self.supports_masking = True

    def __call__(self, x: Nest, **options: Any) -> Nest:
        """Call the block with one positional input, and others by keyword."""
        if not self.block.built:  # outside of what is computed again
            symbol, named = tf.nest.map_structure(_symbol, (x, options))
            self.block(symbol, **named)
        return super().__call__(x, **options)

    def build(self, input_shape: Any) -> None:
        """Build the block."""
        if not self.block.built:
            self.block.build(input_shape)

    def call(self, x: Nest, training: bool | None = None, mask: Nest = None, **options: Any) -> Nest:
        """Call the block; the backward pass computes its activations again."""
        if mask is not None and "mask" in inspect.signature(self.block.call).parameters:
            options["mask"] = mask
        trained = list(self.block.trainable_variables)
        others = [*self.block.non_trainable_variables, *self.block.metrics_variables]
        state = [tf.convert_to_tensor(variable) for variable in others]
        given = tf.nest.flatten((x, options))
        places = [
            i
            for i, value in enumerate(given)
            if tf.is_tensor(value) and (value.dtype.is_floating or value.dtype.is_complex)
        ]
        mask_of, set_mask = private.get("masking.get_keras_mask"), private.get("masking.set_keras_mask")
        masks = {i: mask_of(given[i]) for i in places}
        first: list[Any] = []  # what the first pass finds out: outputs, losses, and what `others` are after it

        def forward(*flat: tf.Tensor) -> list[tf.Tensor]:
            mapping = [*zip(trained, flat, strict=False), *zip(others, state, strict=True)]
            tensors = dict(zip(places, flat[len(trained) :], strict=True))
            for i, tensor in tensors.items():
                set_mask(tensor, masks[i])
            again = tf.nest.pack_sequence_as((x, options), [tensors.get(i, value) for i, value in enumerate(given)])
            with ValueScope(state_mapping=mapping, collect_losses=True) as scope:
                before = dict(scope.state_mapping)
                # `training` by name, since the backward pass takes place outside of Keras's call.
                outputs = self.block(again[0], training=training, **again[1])
            if not first:
                own = set(map(id, others))
                if any(before.get(key) is not value for key, value in scope.state_mapping.items() if key not in own):
                    raise StepError(
                        f"{self.block.name!r} assigns a trainable weight, as SpectralNormalization does, or a variable "
                        "that is not its own. Recompute would lose the new value. Leave that layer outside of it."
                    )
                new = [scope.get_current_value(variable) for variable in others]
                first.extend((outputs, list(scope.losses), new))
            return [*tf.nest.flatten(outputs), *scope.losses]

        weights = [tf.convert_to_tensor(variable) for variable in trained]
        results = tf.recompute_grad(forward)(*weights, *(given[i] for i in places))
        outputs, losses, new = first
        for variable, before, after in zip(others, state, new, strict=True):
            if after is not before:
                variable.assign(after)
        flat = tf.nest.flatten(outputs)
        count = len(flat)
        for output, result in zip(flat, results, strict=False):
            set_mask(result, mask_of(output))
        for loss, own in zip(results[count:], losses, strict=True):
            loss._mirrorkit_own = own  # Keras knows losses by their `id`, which must not be given to another one
            self.add_loss(loss)
        return tf.nest.pack_sequence_as(outputs, results[:count])

    def compute_output_spec(self, x: Nest, training: bool | None = None, mask: Nest = None, **options: Any) -> Nest:
        """Return the block's own."""
        known = inspect.signature(self.block.call).parameters
        options |= {name: value for name, value in (("training", training), ("mask", mask)) if name in known}
        return self.block.compute_output_spec(x, **options)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the block's own."""
        return self.block.compute_output_shape(input_shape)

    def compute_mask(self, inputs: Nest, previous_mask: Nest) -> Nest:
        """Return None: `call` keeps the masks that the block's layers set on their outputs."""
        return None

    def get_config(self) -> Json:
        """Return the configuration of the layer."""
        return {**super().get_config(), "block": keras.saving.serialize_keras_object(self.block)}

    @classmethod
    def from_config(cls, config: Json) -> Recompute:
        """Create a layer from its configuration."""
        block = keras.saving.deserialize_keras_object(config["block"])
        return cls(**{**config, "block": block})


def _symbol(value: Any) -> Any:
    """Return a symbol in the place of a tensor."""
    return keras.KerasTensor(value.shape, value.dtype) if tf.is_tensor(value) else value
