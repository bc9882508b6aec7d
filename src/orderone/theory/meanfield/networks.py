"""Parameters of one network, or of many if they are arrays.

Results are numbers, numpy arrays or tensors, like the parameters.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from orderone.core.arrays import as_numpy, broadcast, like, together
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike, Function, Name, Number
from orderone.core.reals import real
from orderone.theory import activations
from orderone.theory.meanfield.parameters import parameters as read

LEAST_KEEP = 1e-300  # replaces smaller rates, whose inverse may overflow
LARGEST = 1e307  # the sum of larger variances may overflow


@dataclass(frozen=True, eq=False)
class Networks:
    """Parameters that broadcast; two objects are equal if all their parameters are."""

    activation: Name | Function = "tanh"
    weight_var: ArrayLike = 1.0
    bias_var: ArrayLike = 0.0
    keep: ArrayLike = 1.0
    # The phase is critical if chi_1 is this close to 1.
    tolerance: Number = field(default=1e-9, repr=False)

    @cached_property
    def phi(self) -> activations.Activation:
        """Return the activation with its means."""
        return activations.get(self.activation)

    def __post_init__(self) -> None:
        real(self.tolerance, "tolerance", least=0)
        _ = self.phi, self.parameters  # raise errors now, not at the first result

    def _check_broadcast(self, array: Array, name: str) -> None:
        """Raise an InputError unless the array broadcasts with the networks."""
        shape = tuple(array.shape)
        expected = self.parameters[0].shape
        try:
            np.broadcast_shapes(shape, expected)
        except ValueError as error:
            raise InputError(
                f"{name}: expected a shape that broadcasts with the networks, {expected}; got"
                f" {shape}; reshape it",
                argument=name,
            ) from error

    @cached_property
    def parameters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weight_var, bias_var and keep, broadcast to one shape."""
        _, weight_var, bias_var, keep = read(
            weight_var=self.weight_var, bias_var=self.bias_var, keep=self.keep
        )
        broadcast(weight_var=weight_var, bias_var=bias_var, keep=keep)
        w, b, rho = np.broadcast_arrays(
            as_numpy(weight_var), as_numpy(bias_var), np.maximum(as_numpy(keep), LEAST_KEEP)
        )
        with np.errstate(over="ignore"):
            _check_overflow("weight_var / keep", np.asarray(w / rho))
        _check_overflow("bias_var", b)
        return w, b, rho

    def one(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weight_var, bias_var and keep; raise an InputError unless this is one network."""
        if self.parameters[0].size != 1:
            raise InputError(
                f"weight_var, bias_var, keep: expected one network, got arrays of shape"
                f" {self.parameters[0].shape}; make a MeanField for each"
            )
        return self.parameters

    def _in_input_type(self, values: Array, **arguments: ArrayLike) -> Array:
        """Return values in the type of parameters and arguments: numbers, arrays or tensors."""
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


def _check_overflow(name: str, variances: np.ndarray) -> None:
    """Raise an InputError if lengths of signals would overflow."""
    if np.any(variances > LARGEST):
        raise InputError(
            f"{name}: expected at most {LARGEST:g}, got {variances.max():g}; lengths of signals"
            " would overflow: choose smaller variances or a larger keep rate",
            argument=name,
        )


def number(x: Array) -> Array:
    """Turn a numpy array without dimensions into a Python value; return other arrays unchanged."""
    if isinstance(x, np.ndarray | np.generic) and x.ndim == 0:
        return x.item()
    return x
