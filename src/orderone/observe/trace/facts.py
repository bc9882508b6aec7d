"""Facts that a trace shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Use:
    kind: str  # matrix, lookup, convolution, gain, shift, other
    # axes of the parameter that a matrix or convolution sums over; None: unknown
    fan_in: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Constant:
    """A number that multiplies an activation, or a parameter on its way to one; `value` is 1/c for
    a division by c."""

    value: float | None
    # parameters whose use made what it multiplies, up to the last nonlinearity
    after: tuple[str, ...]
    # parameters whose matrix, convolution or lookup takes the product
    before: tuple[str, ...]
    # the steps of those uses: a tensor may be used several times
    at: tuple[int, ...] = field(default=(), compare=False)
    # kinds of the uses in `after`: a tied tensor has several
    uses: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Scores:
    """Attention scores: queries times keys, on their way to a softmax."""

    # parameters that last made the queries: projections, or the gains of a norm behind them
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    head_size: int
    scale: float | None  # everything constant that multiplies q.k, wherever it sits
    normalized: bool  # queries and keys both come out of a normalization


@dataclass(frozen=True)
class Branch:
    """x + f(x)."""

    # what f(x) is linear in: the last matrix and bias, or gain and shift of a norm at the end
    last: tuple[str, ...]
    # every parameter used between x and f(x)
    inside: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    # by parameter name; distinct uses in order of appearance, () if unused
    uses: Mapping[str, tuple[Use, ...]]
    constants: tuple[Constant, ...]
    scores: tuple[Scores, ...]
    branches: tuple[Branch, ...]
    # of a matrix: gain and shift of the norm that feeds it and nothing else
    carriers: Mapping[str, tuple[str, ...]]
