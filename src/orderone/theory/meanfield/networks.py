"""Parameters of one network, or of many if they are arrays.

Results are numbers, numpy arrays or tensors, as the parameters were.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from orderone.core.arrays import as_numpy, broadcast, like, together
from orderone.core.inputs import Array, ArrayLike, Function, Name, Number
from orderone.core.reals import real
from orderone.theory import activations
from orderone.theory.meanfield.parameters import parameters as read

LEAST_KEEP = 1e-300  # a smaller rate is replaced by this one: its inverse may overflow
LARGEST = 1e307  # the sum of larger variances may overflow


@dataclass(frozen=True, eq=False)
class Networks:
    """Parameters that broadcast. Two objects are equal if all parameters are."""

    activation: Name | Function = "tanh"
    weight_var: ArrayLike = 1.0
    bias_var: ArrayLike = 0.0
    keep: ArrayLike = 1.0
    # The phase is critical if chi_1 is this close to 1.
    tolerance: Number = field(default=1e-9, repr=False)

    @cached_property
    def phi(self) -> activations.Activation:
        """The activation with its averages."""
        return activations.get(self.activation)

    def __post_init__(self) -> None:
        real(self.tolerance, "tolerance", least=0)
        _ = self.phi, self.parameters  # raise errors now, not at the first result

    def meets(self, array: Array, name: str) -> None:
        """Raise a ValueError unless the array broadcasts with the networks."""
        shape = tuple(array.shape)
        expected = self.parameters[0].shape
        try:
            np.broadcast_shapes(shape, expected)
        except ValueError as error:
            raise ValueError(
                f"{name}: expected a shape that broadcasts with the networks, {expected}; got"
                f" {shape}; reshape it"
            ) from error

    @cached_property
    def parameters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """weight_var, bias_var and keep, broadcast to one shape."""
        _, weight_var, bias_var, keep = read(
            weight_var=self.weight_var, bias_var=self.bias_var, keep=self.keep
        )
        broadcast(weight_var=weight_var, bias_var=bias_var, keep=keep)
        w, b, rho = np.broadcast_arrays(
            as_numpy(weight_var), as_numpy(bias_var), np.maximum(as_numpy(keep), LEAST_KEEP)
        )
        with np.errstate(over="ignore"):
            _representable("weight_var / keep", np.asarray(w / rho))
        _representable("bias_var", b)
        return w, b, rho

    def one(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weight_var, bias_var and keep; raise a ValueError unless this is one network."""
        if self.parameters[0].size != 1:
            raise ValueError(
                f"expected one network, got shape {self.parameters[0].shape}; make one MeanField"
                " for each"
            )
        return self.parameters

    def as_given(self, values: Array, **arguments: ArrayLike) -> Array:
        """Return values as the parameters and arguments came: numbers, numpy arrays, or tensors."""
        xp, template, *_ = together(
            weight_var=self.weight_var, bias_var=self.bias_var, keep=self.keep, **arguments
        )
        return number(like(values, template, xp))

    def _key(self) -> tuple[object, ...]:
        return self.phi, self.tolerance, *((x.shape, x.tobytes()) for x in self.parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def _representable(name: str, variances: np.ndarray) -> None:
    """Raise a ValueError if lengths of signals would overflow."""
    if np.any(variances > LARGEST):
        raise ValueError(
            f"{name}: expected at most {LARGEST:g}, got {variances.max():g}; lengths of such"
            " signals are no numbers in double precision: choose smaller variances or a larger"
            " keep rate"
        )


def number(x: Array) -> Array:
    """Turn a numpy array without dimensions into a Python value; return other arrays unchanged."""
    if isinstance(x, np.ndarray | np.generic) and x.ndim == 0:
        return x.item()
    return x
