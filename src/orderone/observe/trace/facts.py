"""Result types of a trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Use:
    """A use of a parameter by an operation."""

    # matrix, lookup, convolution, gain, shift, table (its entries become activations), other
    kind: str
    # axes of the parameter that a matrix product or convolution sums over; None: unknown
    fan_in: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Constant:
    """A number that multiplies an activation or a parameter; `value` is 1/c for a division by c."""

    value: float | None
    # parameters whose use made the multiplied tensor, back to the last nonlinearity
    after: tuple[str, ...]
    # parameters whose matrix product, convolution or lookup reads the scaled tensor
    before: tuple[str, ...]
    # steps of those uses: a tensor may be used several times
    at: tuple[int, ...] = field(default=(), compare=False)
    # kinds of the uses in `after`: a tied tensor has several
    uses: tuple[str, ...] = field(default=(), compare=False)
    # RMS of the multiplied tensor if it was just normalized, so that no parameter sets its size:
    # n^-1/2 after a division by the length, 1/n after a softmax over n entries
    size: float = field(default=1.0, compare=False)
    # True if the result is one term of a sum of activations, as at the end of a residual branch
    added: bool = field(default=False, compare=False)
    # True if the layer that has the parameter multiplies by the number itself (equalized layers)
    inner: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Term:
    """A number that multiplies an activation, at a place that fixes the size of the product.

    The place is one term of a sum, the input of a softmax or the output of the model.
    """

    value: float | None
    size: float  # RMS of the product; NaN if unknown
    others: float | None  # RMS of the rest of the sum; None if it is no sum
    linear_in: tuple[str, ...]  # matrices and tables that could take the number
    near: tuple[str, ...]  # the last parameters that are used before it
    # of a sum of products of activations (queries times keys): its RMS, without the number, if all
    # products had the same sign; None if it is no such sum
    aligned: float | None = None


@dataclass(frozen=True)
class Scores:
    """Attention scores: queries times keys, the input of a softmax."""

    # the last parameters before the scores: projections, or the gains of a norm after them
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    head_size: int
    scale: float | None  # product of all constants that multiply q.k, wherever they are
    normalized: bool  # queries and keys are both outputs of a normalization


@dataclass(frozen=True)
class Branch:
    """A residual branch: f in x + f(x)."""

    # parameters that f(x) is linear in: the last matrix and bias, or gain and shift of a final norm
    last: tuple[str, ...]
    # every parameter used between x and f(x)
    inside: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """Uses of all parameters in one forward pass, and the structure around them."""

    # by parameter name; distinct uses in order of appearance, () if unused
    uses: Mapping[str, tuple[Use, ...]]
    constants: tuple[Constant, ...]
    scores: tuple[Scores, ...]
    branches: tuple[Branch, ...]
    # by name of a matrix: gain and shift of a norm whose output only this matrix reads
    carriers: Mapping[str, tuple[str, ...]]
    # names of lists of modules none of which reads the output of another: heads, experts
    parallel: frozenset[str] = frozenset()
    # matrices whose output a norm divides by its size
    normalized: frozenset[str] = frozenset()
    # matrices, convolutions and tables that the model's outputs are linear in
    at_output: frozenset[str] = frozenset()
    # those among them that no other one reads
    readouts: frozenset[str] = frozenset()
    # those from which outputs are computed without another one, also by nonlinear functions
    last_makers: frozenset[str] = frozenset()
    # those among the last makers that no other matrix, convolution or table reads
    output_makers: frozenset[str] = frozenset()
    # sizes that products of two activations are summed over, in the order of the network
    summed: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()
    # matrices that read the inputs of the model: no other matrix or table comes before them
    data_readers: frozenset[str] = frozenset()
    # parameters whose output is a matrix itself (a hypernetwork): its fan-in and fan-out
    generated: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # uses (name and kind) of a parameter by code that does not call a module that holds it
    outside: frozenset[tuple[str, str]] = frozenset()
