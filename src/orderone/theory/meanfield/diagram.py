"""Phase diagrams: fixed points over a grid of weight and bias variances.

Poole et al. 2016, Schoenholz et al. 2017; with the trainable depth, Figure 7 of S1.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from orderone.core.arrays import together
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike, Function, Name, Number
from orderone.theory.meanfield.mean_field import MeanField

QUANTITIES = ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2")


@dataclass(frozen=True)
class PhaseDiagram(Mapping[str, Array]):
    """Mapping with q_star, c_star, chi1, chi2, xi1, xi2 as 2-d arrays.

    Entry [i, j] belongs to weight_var[i] and bias_var[j]. If the parameters are tensors, so are the
    results, on the same device; phase and status are numpy arrays of words.
    """

    weight_var: Array  # (i,)
    bias_var: Array  # (j,)
    networks: MeanField

    def __getitem__(self, quantity: str) -> Array:
        if quantity not in QUANTITIES:
            raise KeyError(quantity)
        return getattr(self.networks, quantity)

    def __iter__(self) -> Iterator[str]:
        return iter(QUANTITIES)

    def __len__(self) -> int:
        return len(QUANTITIES)

    @property
    def phase(self) -> np.ndarray:
        """Return ordered, critical or chaotic, [i, j]."""
        return self.networks.phase

    @property
    def status(self) -> np.ndarray:
        """Return converged or diverges, [i, j]."""
        return self.networks.status

    @property
    def trainable_depth(self) -> Array:
        """Return min(12 xi_1, 12 xi_2), [i, j]."""
        return self.networks.trainable_depth()


def phase_diagram(
    activation: Name | Function, weight_var: ArrayLike, bias_var: ArrayLike, keep: Number = 1.0
) -> PhaseDiagram:
    """Return a mapping of 2-d arrays: q_star, c_star, chi1, chi2, xi1, xi2.

    Entry [i, j] is for weight_var[i] and bias_var[j].
    """
    xp, rows, columns, rate = together(weight_var=weight_var, bias_var=bias_var, keep=keep)
    if rows.ndim == 0:
        rows = xp.reshape(rows, (1,))
    if columns.ndim == 0:
        columns = xp.reshape(columns, (1,))
    for name, axis in (("weight_var", rows), ("bias_var", columns)):
        if axis.ndim != 1:
            raise InputError(
                f"{name}: expected a number or a vector, the values along one axis; got shape"
                f" {tuple(axis.shape)}",
                argument=name,
            )
    if rate.ndim:
        raise InputError(
            f"keep: expected one number, got shape {tuple(rate.shape)}; make a diagram for each",
            argument="keep",
        )
    networks = MeanField(activation, rows[:, None], columns[None, :], float(rate))
    return PhaseDiagram(rows, columns, networks)
