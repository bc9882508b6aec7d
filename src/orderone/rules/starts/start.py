"""A start: the initial size of every matrix and lookup table at the size of the base.

A start sees one tensor at a time, as a `Facts` record, and returns the root mean square of its
initial values; None leaves the values of the model's own code. The rule then carries the size to
any other width and depth, as it carries the sizes of the model's own code.

    y_i = c sum_j W_ij x_j,  j = 1 .. fan_in      RMS(y) = c sqrt(fan_in) RMS(W) RMS(x)

c is the constant by which the forward code multiplies y (for queries, the size of attention scores
whose queries and keys are of size one; it is 1 if scores are divided by the root of the head size).
The output has the size of the input if RMS(W) = 1 / (c sqrt(fan_in)), `order_one`. The row of a
lookup table is a sum of one term.

A table that is embedding and readout has two such sizes, 1 / c for its rows and
1 / (c' sqrt(width)) for the logits. The smaller one counts: logits that are too large cost loss
from the first step, and a norm at the start of a residual branch removes the size of a stream that
is too small. Forward code with the right constants makes both equal (Gemma: c = sqrt(width); T5:
c' = 1 / sqrt(width)).
"""

from collections.abc import Callable
from dataclasses import dataclass

from orderone.core.roles import Role

NORMAL = "normal"
ORTHOGONAL = "orthogonal"
CONSTANT = "constant"


@dataclass(frozen=True)
class Facts:
    """Facts about one tensor at the size of the base."""

    role: Role  # embedding, hidden, readout, or vector for gains and biases
    fan_in: float  # terms in the sum of an output; 1 for a lookup
    fan_out: float  # outputs; of one matrix, if several lie side by side in the tensor
    constant: float = 1.0  # factor of its output in the forward code
    # size at which the logits are of order one, if this table is also the readout, or is added to
    # a table that is
    as_readout: float | None = None
    group: str = ""  # patch, WE, PE, QKVU, W, X or head, the groups of S2
    width: float = 1.0  # of the residual stream
    layers: int = 1  # layers of its stack
    ends_branch: bool = False  # a residual branch is linear in it
    is_output: bool = False  # its output is the output of the model


def order_one(tensor: Facts) -> float:
    """Return the size with which the output is as large as the input."""
    size = tensor.fan_in**-0.5 / tensor.constant
    if tensor.as_readout is None:
        return size
    return min(size, tensor.as_readout)


@dataclass(frozen=True)
class Start:
    """A named start: a function from the facts about a tensor to its initial size."""

    name: str
    source: str
    formula: str
    size: Callable[[Facts], float | None]
    distribution: str = NORMAL  # of matrices; lookup tables are always normal
    uses_branches: bool = False  # whether it needs to know the ends of residual branches
