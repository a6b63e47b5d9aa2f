"""Which device holds which variables of a model that is larger than one device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from mirrorkit import strategy as _strategy
from mirrorkit.arguments import is_whole
from mirrorkit.devices import Devices, resolve, short_name
from mirrorkit.errors import StepError
from mirrorkit.parallel.keras_internals import in_creation, seeing_creations
from mirrorkit.strategy import class_name, is_on_own_devices, replica_devices
from mirrorkit.variables import mark_placed

_SEED = "seed_generator_state"  # which Keras names so


class Layout:
    """Places the variables of a model on several devices; the computation follows them.

    ```python
    layout = mk.parallel.Layout({"embed|block[01]": 0, "block[23]|head": 1}, devices="gpu:2")
    with layout, layout.strategy().scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(1e-3)
    ```

    Training gives the same weights as on one device. The devices compute one after the other: a layout gives memory,
    not speed. With twice as many devices as the rules name, there are two replicas of the placed model, and so on: data
    parallelism and model parallelism together.

    Args:
        rules: for each pattern the number of a device, from 0. A pattern is a regular expression, searched for in the
            path of a variable, such as "block0/attention/query/kernel". The first match counts.
        devices: the devices of all replicas, as `mk.devices.resolve` takes them. With two devices per replica, the
            first two belong to the first replica.
        default: the number of the device for variables that no pattern matches; without it they are an error.

    Attributes:
        rules, devices, default: what was given; `devices` as a tuple of names.
        first_devices: the first device of each replica, which is where its batch goes.

    Raises:
        StepError: rules that cannot be read, or a number of devices that does not fit them. On leaving the block: a
            pattern that matches no variable, or a variable that no pattern matches.
        DeviceError: a device that does not exist.
    """

    def __init__(self, rules: Mapping[str, int], *, devices: Devices = None, default: int | None = None) -> None:
        _check_rules(rules, default)
        self.rules = dict(rules)
        self.default = default
        self.devices = tuple(resolve(devices))
        self._stages = 1 + max([*self.rules.values(), default or 0])
        if len(self.devices) % self._stages:
            raise StepError(
                f"The rules name {self._stages} devices (0 to {self._stages - 1}), and there are {len(self.devices)}: "
                f"{', '.join(self.devices)}. Give {self._stages} devices, or for N replicas N times as many."
            )
        self._known: set[str] = set()  # paths of all that were placed
        self._lost: set[str] = set()  # in this block, paths of weights that no pattern fits
        self._is_empty = True  # whether no variable was created in this block
        self._scopes = ExitStack()

    @property
    def first_devices(self) -> tuple[str, ...]:
        """The first device of each replica."""
        return self.devices[:: self._stages]

    def strategy(self) -> tf.distribute.Strategy:
        """Create the strategy for these devices: one_device, or mirrored for several replicas."""
        several = len(self.first_devices) > 1
        return _strategy.create("mirrored" if several else "one_device", devices=list(self.first_devices))

    def device_of(self, path: str) -> int | None:
        """Return the number of the device for a variable by its path; None if no pattern matches."""
        return next((number for pattern, number in self.rules.items() if re.search(pattern, path)), self.default)

    def __enter__(self) -> Layout:
        """Place the variables that are created in the block."""
        if tf.distribute.has_strategy():
            raise StepError(
                "A strategy's scope puts every variable on the replica's own device, so a layout has to be entered "
                "before it: `with layout, strategy.scope():`."
            )
        self._lost, self._is_empty = set(), True
        self._scopes.enter_context(seeing_creations())
        self._scopes.enter_context(tf.variable_creator_scope(self._create))
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        """Check that rules and variables fit each other, unless the block has failed already."""
        self._scopes.close()
        if kind is None:
            self._check_fit()

    def _create(self, next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        """Create one variable where its path says; called for each replica, on that replica's device."""
        about = in_creation()
        if about is None or about.path.endswith(_SEED) or not (about.rank or about.trainable):
            return next_creator(**options)  # what only counts stays on the replica's device
        self._is_empty = False
        if self._is_slot(about.path):
            return next_creator(**options)
        number = self.device_of(about.path)
        if number is None:
            if about.trainable:  # a Step asks for the others: a metric's variables are no model's
                self._lost.add(about.path)
            return next_creator(**options)
        self._known.add(about.path)
        with tf.device(self._device(number)):
            return mark_placed(next_creator(**options))

    def _is_slot(self, path: str) -> bool:
        """Return whether it is an optimizer's for a placed weight, as its name says; it lies beside that already."""
        name = path.rpartition("/")[2]
        return any(name.startswith(known.replace("/", "_") + "_") for known in self._known)

    def _device(self, number: int) -> str:
        """Return device `number` of the replica on whose device this is called."""
        strategy = tf.distribute.get_strategy()
        if not is_on_own_devices(strategy):
            raise StepError(
                f"A layout goes with one device or mirrored, found {class_name(strategy)}. Create the strategy with "
                "layout.strategy(). A table that is larger than one parameter server is a mk.parallel.PartitionedTable."
            )
        found = tuple(map(short_name, replica_devices(strategy)))
        if tf.distribute.has_strategy() and found != self.first_devices:
            raise StepError(
                f"The strategy's replicas have the devices {', '.join(found)}, and the first devices of the "
                f"layout's replicas are {', '.join(self.first_devices)}. Create the strategy with "
                "layout.strategy()."
            )
        here = short_name(tf.zeros([]).device)
        replica = self.devices.index(here) // self._stages if here in self.devices else 0
        return self.devices[replica * self._stages + number]

    def _check_fit(self) -> None:
        if self._is_empty:
            raise StepError(
                "No variable was created within the layout. Build the model in the block: give it an Input, or call it "
                "once on a batch."
            )
        unused = [pattern for pattern in self.rules if not any(re.search(pattern, path) for path in self._known)]
        if unused:
            raise StepError(
                f"No variable fits {', '.join(map(repr, unused))}. The paths are:\n{_lines(self._known | self._lost)}"
            )
        if self._lost:
            raise StepError(
                f"No pattern fits these variables:\n{_lines(self._lost)}\nName them in a rule, or give default=0 for "
                "the device of all that no rule names."
            )


def _check_rules(rules: Mapping[str, int], default: int | None) -> None:
    if not rules:
        raise StepError(f'A layout takes rules such as {{"block[01]": 0, "block[23]": 1}}, found {rules!r}.')
    for pattern, number in [*rules.items(), ("default", default or 0)]:
        if not is_whole(number, 0):
            raise StepError(f"{pattern!r} has the device {number!r}; write the number of a device, from 0.")
        try:
            re.compile(pattern)
        except re.error as error:
            raise StepError(f"{pattern!r} is not a regular expression: {error}.") from error


def _lines(paths: Iterable[str]) -> str:
    return "\n".join(f"  {path}" for path in sorted(paths))
