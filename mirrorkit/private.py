"""Every name of Keras and TensorFlow that mirrorkit replaces, or uses though it is not public.

There are two kinds. Without an *improvement* training has the same results and takes longer, or says less: where the
installed versions no longer have the name, it is left off with one warning. Without a *need* results would differ, or
nothing would run: `Step` raises a `BackendError` that names it. `tests/test_architecture.py` compares the table with
the code.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from mirrorkit.errors import BackendError
from mirrorkit.supported import KERAS, TENSORFLOW, written


class Names(NamedTuple):
    """Names of one owner.

    `owner` is a module or class, "old.place or new.place" where it has moved between versions. One that begins with
    "model", "optimizer", "compiled" or "strategy" is an object that `check` is given. Others, such as "a built
    optimizer", cannot be looked up before they are used.
    """

    owner: str
    names: str
    why: str
    lost: str = ""  # without an improvement


IMPROVEMENTS = (
    Names(
        "keras.src.backend.tensorflow.numpy or keras.src.backend.tensorflow.ops.numpy",
        "signbit argmax take",
        "they compute with int32, which TensorFlow keeps in the host's memory; `take` reads all of a table",
        "steps with Embedding or an accuracy wait for the GPU, and large tables are slow",
    ),
    Names(
        "keras.src.backend.tensorflow.image or keras.src.backend.tensorflow.ops.image",
        "affine_transform",
        "it copies a number from a GPU to the host",
        "steps with random rotations and the like wait for the GPU",
    ),
    Names(
        "keras.src.backend.tensorflow.nn or keras.src.backend.tensorflow.ops.nn",
        "_compute_moments_sync",
        "it sends three messages, and its gradient more",
        "synchronized BatchNormalization sends several messages for each layer in place of one",
    ),
    Names(
        "tensorflow.python.framework.config",
        "is_op_determinism_enabled",
        "whether operations are deterministic, which XLA's are not",
        'jit_compile="auto" leaves XLA off',
    ),
    Names(
        "tensorflow.python.ops.gen_stateless_random_ops_v2",
        "stateless_random_get_key_counter stateless_random_normal_v2 stateless_random_uniform_v2",
        "every random float is drawn there: under XLA too, they are to be TensorFlow's",
        'XLA draws other random numbers, and jit_compile="auto" leaves it off where a step draws some',
    ),
    Names(
        "tensorflow.python.ops.random_ops_util",
        "get_key_counter_alg",
        "the key that TensorFlow makes of a seed; XLA makes another of a seed that is negative or has 64 bits",
        "the same",
    ),
    Names(
        "keras.metrics.MeanSquaredError.__init__",
        "_direction",
        "whether a metric is to rise or to fall",
        "a callback that monitors a metric needs its mode",
    ),
    Names(
        "the build of an optimizer",
        "momentums _accumulated_delta_vars _accumulated_grads _accumulators _average_gradients _m _momentums _u"
        " _velocities _velocity_hats",
        "the slots of each weight",
        "small weights are updated one by one, tables as a whole, and shard_optimizer is refused",
    ),
    Names(
        "the callbacks of Keras",
        "_batches_seen_since_last_saving _current_epoch _ema_weights_in_model _global_test_batch _global_train_batch"
        " _last_batch_seen _total_batches_seen",
        "what a checkpoint has to hold of them",
        "a resumed run may save at other steps, lose count of what TensorBoard shows, or swap in the wrong weights",
    ),
    Names(
        "a strategy with parameter servers",
        "_allow_run_without_coordinator",
        "trace a custom step in the chief to learn its logs",
        "TensorFlow warns of it at length",
    ),
    Names(
        "tensorflow.python.util._pywrap_util_port",
        "IsMklEnabled",
        "whether TensorFlow uses oneDNN",
        "nothing says that oneDNN is off",
    ),
)

NEEDS = (
    Names(
        "model",
        "_flatten_layers _loss_ids _metrics",
        "layers inside layers, where the public `layers` stops at the model's own; which losses a layer has added, and "
        "which metrics are its own",
    ),
    Names(
        "compiled",
        "_compile_config",
        "what `compile` was given; the public get_compile_config has copies, of registered functions and classes only",
    ),
    Names(
        "keras.src.backend.common.masking",
        "get_keras_mask set_keras_mask",
        "masks of outputs in a loss, and of a block's inputs",
    ),
    Names(
        "keras.src.backend.tensorflow.optimizer",
        "TFOptimizer",
        "what Keras adds to an optimizer for tf.distribute, which is undone: an optimizer as a pure function",
    ),
    Names(
        "keras.src.optimizers.base_optimizer",
        "BaseOptimizer",
        "the arithmetic of an optimizer without tf.distribute",
    ),
    Names(
        "keras.optimizers.Optimizer",
        "apply scale_loss _backend_update_step _backend_apply_gradients _apply_weight_decay _use_weight_decay _var_key",
        "an optimizer as a pure function, and one that averages gradients in a model's own train_step",
    ),
    Names(
        "optimizer",
        "_learning_rate _trainable_variables",
        "its schedule, and the weights that it was built for",
    ),
    Names(
        "optimizer.iterations",
        "_value _shape _ndim _path _name",
        "Keras variables that stand for weights of other shapes",
    ),
    Names(
        "a built optimizer",
        "_exclude_from_weight_decay_cache _is_excluded_from_weight_decay _model_variables_moving_average"
        " _weight_decay_by_var_key",
        "which weights decay, and averages of the weights",
    ),
    Names(
        "keras.optimizers.LossScaleOptimizer",
        "apply scale_loss",
        "gradients are averaged there in a model's own train_step, and its loss is scaled",
    ),
    Names(
        "a tape",
        "_watch_accessed_variables",
        "a tape that watches no variables by itself",
    ),
    Names(
        "tensorflow.GradientTape",
        "__enter__ gradient",
        "gradients by weights that are values in a step",
    ),
    Names(
        "keras.metrics.Mean",
        "update_state",
        "a mean of one number counts as the rows of its replica",
    ),
    Names(
        "keras.Variable",
        "assign_add _initialize",
        "a replica adds to its part of a metric's sum; the variable that Keras is about to create",
    ),
    Names(
        "keras.src.losses.loss",
        "scale_loss_for_distribution unscale_loss_for_distribution apply_mask reduce_values",
        "Keras divides there by the number of replicas, and by what a mask or weights leave in a replica's own rows",
    ),
    Names(
        "keras.losses.Loss",
        "__call__",
        "which losses are called with which shapes, before the first step",
    ),
    Names(
        "keras.src.random.seed_generator",
        "global_seed_generator",
        "the generator of draws without a seed",
    ),
    Names(
        "keras.random.SeedGenerator",
        "next",
        "each replica draws its own numbers",
    ),
    Names(
        "tensorflow.random",
        "normal uniform truncated_normal shuffle stateless_normal stateless_uniform stateless_truncated_normal",
        "draws of a replica, and of a row",
    ),
    Names(
        "tensorflow.nn",
        "dropout compute_average_loss",
        "draws of a replica; a loss that is divided by the rows of the global batch, where shares are averaged",
    ),
    Names(
        "tensorflow.compat.v2.summary",
        "write",
        "tell that a step writes no summaries: `tf.summary.scalar` and its like call that of tf.compat.v2",
    ),
    Names(
        "tensorflow.python.distribute.distribute_lib.StrategyBase",
        "num_replicas_in_sync",
        "how many replicas a user's code divides by, which is averaged over the rows",
    ),
    Names(
        "tensorflow.python.distribute.distribute_lib.ReplicaContext",
        "all_reduce all_gather",
        "refuse what user code would reduce a second time",
    ),
    Names(
        "tensorflow.nn.experimental",
        "stateless_dropout",
        "draws of a row",
    ),
    Names(
        "keras.StatelessScope",
        "get_current_value",
        "weights that a custom-gradient function reads, which are values in a step",
    ),
    Names(
        "keras.src.backend.common.stateless_scope",
        "get_stateless_scope",
        "the same",
    ),
    Names(
        "tensorflow.python.ops.custom_gradient",
        "_graph_mode_decorator _eager_mode_decorator",
        "the same: each custom-gradient function is called there",
    ),
    Names(
        "tensorflow.python.eager.record",
        "VariableWatcher",
        "the same: which tf.Variables such a function reads",
    ),
    Names(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function.Function",
        "__call__",
        "tf.functions become part of the function that is traced around them",
    ),
    Names(
        "tensorflow.__internal__",
        "FuncGraph",
        "a graph in which layers create their variables",
    ),
    Names(
        "keras.callbacks.EarlyStopping",
        "_set_monitor_op",
        "the sign of `min_delta`, which Keras flips once",
    ),
    Names(
        "tensorflow.python.framework.ops.EagerTensor",
        "_handle_data",
        "the dtype of a variable of which a graph knows only the handle",
    ),
    Names(
        "a list of variables",
        "_self_",
        "attributes of TensorFlow, not of the user, on a list or dict of variables",
    ),
    Names(
        "keras.src.backend.common.global_state",
        "get_global_attribute set_global_attribute",
        "variables that are never given values",
    ),
    Names(
        "keras.layers.BatchNormalization",
        "call",
        "refuse masked inputs, whose statistics Keras does not synchronize",
    ),
    Names(
        "keras.Operation",
        "__call__",
        "the inputs and outputs of each layer",
    ),
    Names(
        "strategy",
        "_cluster_resolver",
        "the tasks of parameter servers; the public property is None there",
    ),
)

# By the last part of the owner's name, and the name: "numpy.take".
_ROWS = {f"{row.owner.split('.')[-1]}.{name}": row for row in (*IMPROVEMENTS, *NEEDS) for name in row.names.split()}


def check(**objects: object) -> None:
    """Refuse installed versions without something that training needs; warn of improvements that are left off.

    With `model=`, `optimizer=` and the like also what these objects need to have.

    Raises:
        BackendError: a need is missing.
    """
    for key, row in _ROWS.items():
        if row.owner.split(".")[0] in {"keras", "tensorflow", *objects} and _place(key, objects) is None:
            tell_missing(key)


def get(key: str) -> Any:
    """Return what the table knows by a name such as "record.VariableWatcher"; None for an improvement that is gone."""
    place = _place(key, {})
    if place is None:
        return tell_missing(key)
    return getattr(*place)


_waiting: list[tuple[str, Callable[..., Any], Callable[[], bool]]] = []  # for `install`
_lock = threading.Lock()


def register(key: str, wrapper: Callable[..., Any], where: Callable[[], bool]) -> None:
    """Let `install` replace a function by one that calls `wrapper(original, ...)` where `where()`."""
    _waiting.append((key, wrapper, where))


def install() -> None:
    """Replace, once and for good, the functions that are registered."""
    with _lock:
        while _waiting:
            _replace(*_waiting[0])
            del _waiting[0]


def replace(key: str, wrapper: Callable[..., Any]) -> contextlib.ExitStack:
    """Replace a function in `with replace(...)` by one that calls `wrapper(original, ...)`, in all threads."""
    install()  # not within the block, whose end would undo it
    return _replace(key, wrapper, lambda: True)


def _replace(key: str, wrapper: Callable[..., Any], where: Callable[[], bool]) -> contextlib.ExitStack:
    """Do that; an improvement that is gone is left off."""
    undo = contextlib.ExitStack()
    place = _place(key, {})
    if place is None:
        tell_missing(key)
        return undo
    owner, name = place
    original, own = getattr(owner, name), vars(owner).get(name)

    is_property = isinstance(original, property)
    function = original.fget if is_property else original

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        return wrapper(function, *args, **options) if where() else function(*args, **options)

    if own is None:  # a base class has it
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, own)
    setattr(owner, name, property(wrapped) if is_property else wrapped)
    return undo


def has(owner: Any, name: str) -> bool:
    """Return whether an object has an attribute, or, of a function, whether its code uses one of that name."""
    return hasattr(owner, name) or name in getattr(getattr(owner, "__code__", None), "co_names", ())


@functools.cache  # one warning; errors are not kept
def tell_missing(key: str) -> None:
    """Warn that an improvement is left off, or refuse the installed versions.

    Raises:
        BackendError: it is a need.
    """
    import tensorflow as tf

    from mirrorkit._keras import keras

    row = _ROWS[key]
    found = f"Keras {keras.__version__} and TensorFlow {tf.__version__} have no {row.owner}.{key.split('.')[-1]}"
    tested = " and ".join(
        f"{name} {written(oldest)} to {written(newest)}"
        for name, (oldest, newest) in (("TensorFlow", TENSORFLOW), ("Keras", KERAS))
    )
    if row in NEEDS:
        raise BackendError(
            f"{found}, which mirrorkit needs ({row.why}). Install versions that it was tested with, {tested}, or a "
            "newer mirrorkit."
        )
    warnings.warn(
        f"{found}, so {row.lost}. Results are the same within rounding. Tested: {tested}.", UserWarning, stacklevel=3
    )


def _place(key: str, objects: dict[str, Any]) -> tuple[Any, str] | None:
    """Return the owner of a name of the table, and the name."""
    name = key.split(".")[-1]
    for place in _ROWS[key].owner.split(" or "):
        root, *parts = place.split(".")
        try:
            owner = functools.reduce(getattr, parts, objects[root]) if root in objects else pkgutil.resolve_name(place)
        except (AttributeError, ImportError):
            continue
        if has(owner, name):
            return owner, name
    return None
