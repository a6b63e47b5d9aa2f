"""Random numbers that are a row's own, in whatever part of a batch it is: for comparisons of a batch with its parts.

What is drawn for n rows differs from what is drawn for others. With `RowDraws` in `ambient` each draw of rows is made
for all rows, of which a part takes its own. A draw with a constant seed is left as it is: replicas would repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from mirrorkit.train.ambient import ambient, replaces

Shapes: TypeAlias = "list[tuple[int, ...] | None]"  # of draws; None where only a run knows it


@dataclass
class RowDraws:
    """The draws of a part of some rows.

    Attributes:
        own: how many rows the part has.
        first: the first of them.
        rows: how many there are in all.
        of_all: of each draw, in order, its shape for all rows, as far as it is known; shared by all parts, and filled
            when all rows are computed. A draw that has the same shape for a part is none of rows.
        shapes: of variables; where no more is known, a draw of such a shape is none of rows.
    """

    own: int
    first: int
    rows: int
    of_all: Shapes
    shapes: Collection[tuple[int, ...]] = ()
    seeds: list[tf.Tensor] = field(default_factory=list)  # that generators gave
    _made: int = 0
    _from_seeds: int = 0

    @property
    def all_are_known(self) -> bool:
        """Whether each seed of a generator went into a draw that can be made by rows."""
        return self._from_seeds >= len(self.seeds)

    def draw(self, original: Callable[..., tf.Tensor], shape: Any, seed: Any, *args: Any, **options: Any) -> tf.Tensor:
        """Draw for all rows, where it is a draw of rows, and return those of this part."""

        def drawn(shape: Any) -> tf.Tensor:
            return original(shape, seed, *args, **options)

        sizes = tf.convert_to_tensor(shape, tf.int32)
        constant = self._is_constant(seed)
        self._from_seeds += not constant
        if sizes.shape[0] == 0 or constant:
            return drawn(shape)
        known = tf.get_static_value(sizes)
        static = None if known is None else tuple(known)
        if self.own == self.rows:
            self.of_all.append(static)
        self._made += 1
        if self._made > len(self.of_all):  # all rows drew less often
            self._from_seeds -= 1
            return drawn(shape)
        if not self._is_of_rows(static, self.of_all[self._made - 1]):
            return drawn(shape)
        times, rest = sizes[0] // self.own, sizes[1:]
        own = drawn(tf.concat([[times, self.rows], rest], 0))[:, self.first : self.first + self.own]
        of_rows = tf.reshape(own, tf.concat([[times * self.own], rest], 0))
        others = drawn(tf.concat([[sizes[0] - times * self.own], rest], 0))
        return tf.ensure_shape(tf.concat([of_rows, others], 0), drawn(shape).shape)

    def _is_of_rows(self, static: tuple[int, ...] | None, of_all: tuple[int, ...] | None) -> bool:
        """Return whether a draw is of rows, by its shape and by that for all rows.

        Where all rows are a multiple, to draw for each row gives the same numbers as to draw at once.
        """
        if of_all is None:
            return True
        if self.own == self.rows and of_all[0] % self.rows == 0:
            return True
        return of_all not in self.shapes if self.own == self.rows or static is None else static != of_all

    def _is_constant(self, seed: Any) -> bool:
        """Return whether no generator gave a seed; in a graph, whether it is known while that is traced."""
        known = _numbers(seed)
        return known is not None and known not in map(_numbers, self.seeds)


def _numbers(seed: Any) -> tuple[int, ...] | None:
    """Return a seed as Keras takes it, which casts it to int32; None where only a run knows it."""
    value = tf.get_static_value(tf.convert_to_tensor(seed))
    return None if value is None else tuple(int(number) % (2**31 - 2) for number in np.ravel(value))


@replaces("random.stateless_normal", "random.stateless_uniform", "random.stateless_truncated_normal", within="draws")
def _draw(original: Callable[..., tf.Tensor], *args: Any, **options: Any) -> Any:
    return ambient.draws.draw(original, *args, **options)


@replaces("experimental.stateless_dropout", within="draws")
def _dropped(original: Callable[..., tf.Tensor], x: Any, rate: Any, seed: Any, **options: Any) -> tf.Tensor:
    shape = options.get("noise_shape")
    if shape is None:
        shape = tf.shape(x)
    elif not tf.is_tensor(shape):
        shape = [tf.shape(x)[i] if n is None else n for i, n in enumerate(shape)]
    kept = tf.cast(tf.random.stateless_uniform(shape, seed) >= rate, x.dtype)
    return x * kept / tf.cast(1 - rate, x.dtype)
