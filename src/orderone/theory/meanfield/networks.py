"""One network, or many if parameters are arrays: what users give, checked, and results in the kind
of array that came."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from orderone.core.arrays import as_numpy, broadcast, like, together
from orderone.core.inputs import Array, ArrayLike, Function, Name, Number
from orderone.core.reals import real
from orderone.theory import activations
from orderone.theory.meanfield.parameters import parameters as read

LEAST_KEEP = 1e-300  # a smaller rate is taken as this one: it may have no inverse
LARGEST = 1e307  # the sum of larger variances is no number


@dataclass(frozen=True, eq=False)
class Networks:
    """Parameters that broadcast. Two are equal if all of them are."""

    activation: Name | Function = "tanh"
    weight_var: ArrayLike = 1.0
    bias_var: ArrayLike = 0.0
    keep: ArrayLike = 1.0
    tolerance: Number = field(
        default=1e-9, repr=False
    )  # of chi_1, within which the phase is critical

    @cached_property
    def phi(self) -> activations.Activation:
        return activations.get(self.activation)

    def __post_init__(self) -> None:
        real(self.tolerance, "tolerance", least=0)
        _ = self.phi, self.parameters  # wrong input is said now, not at the first result

    def meets(self, given: Any, name: str) -> None:
        """A ValueError unless it broadcasts with the networks."""
        shapes = tuple(given.shape), self.parameters[0].shape
        try:
            np.broadcast_shapes(*shapes)
        except ValueError as error:
            raise ValueError(
                f"{name}: expected a shape that broadcasts with the networks, {shapes[1]}; got"
                f" {shapes[0]}; reshape it"
            ) from error

    @cached_property
    def parameters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, *given = read(weight_var=self.weight_var, bias_var=self.bias_var, keep=self.keep)
        broadcast(**dict(zip(("weight_var", "bias_var", "keep"), given, strict=True)))
        weight_var, bias_var, keep = map(as_numpy, given)
        a, b, c = np.broadcast_arrays(weight_var, bias_var, np.maximum(keep, LEAST_KEEP))
        with np.errstate(over="ignore"):
            _representable(**{"weight_var / keep": np.asarray(a / c), "bias_var": b})
        return a, b, c

    def one(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """weight_var, bias_var and keep, if this is one network."""
        if self.parameters[0].size != 1:
            raise ValueError(
                f"expected one network, got shape {self.parameters[0].shape}; make one MeanField"
                " for each"
            )
        return self.parameters

    def as_given(self, values: Array, **others: Any) -> Any:
        """As the parameters and `others` came: numbers, arrays of numpy, or tensors."""
        xp, *given = together(
            weight_var=self.weight_var, bias_var=self.bias_var, keep=self.keep, **others
        )
        return number(like(values, given[0], xp))

    def _key(self) -> tuple[Any, ...]:
        return self.phi, self.tolerance, *((x.shape, x.tobytes()) for x in self.parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def _representable(**variances: np.ndarray) -> None:
    for name, values in variances.items():
        if np.any(values > LARGEST):
            raise ValueError(
                f"{name}: expected at most {LARGEST:g}, got {values.max():g}; lengths of such"
                " signals are no numbers in double precision: choose smaller variances or a larger"
                " keep rate"
            )


def number(x: Array) -> Any:
    if isinstance(x, np.ndarray | np.generic) and x.ndim == 0:
        return x.item()
    return x
