"""What a trace tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Use:
    kind: str  # matrix, lookup, convolution, gain, shift, other
    fan_in: tuple[int, ...] | None = (
        None  # axes of the parameter that a matrix or convolution sums over; None: unknown
    )


@dataclass(frozen=True)
class Constant:
    """A number that multiplies an activation, or a parameter on its way to one; `value` is 1/c for
    a division by c."""

    value: float | None
    after: tuple[
        str, ...
    ]  # parameters whose use made what it multiplies, up to the last nonlinearity
    before: tuple[str, ...]  # parameters whose matrix, convolution or lookup takes the product
    at: tuple[int, ...] = field(
        default=(), compare=False
    )  # the steps of those uses: a tensor may be used several times
    uses: tuple[str, ...] = field(
        default=(), compare=False
    )  # kinds of the uses in `after`: a tied tensor has several


@dataclass(frozen=True)
class Scores:
    """Attention scores: queries times keys, on their way to a softmax."""

    queries: tuple[
        str, ...
    ]  # parameters that last made the queries: projections, or the gains of a norm behind them
    keys: tuple[str, ...]
    head_size: int
    scale: float | None  # everything constant that multiplies q.k, wherever it sits
    normalized: bool  # queries and keys both come out of a normalization


@dataclass(frozen=True)
class Branch:
    """x + f(x)."""

    last: tuple[
        str, ...
    ]  # what f(x) is linear in: the last matrix and bias, or gain and shift of a norm at the end
    inside: tuple[str, ...]  # every parameter used between x and f(x)


@dataclass(frozen=True)
class Trace:
    uses: Mapping[
        str, tuple[Use, ...]
    ]  # by parameter name; distinct uses in order of appearance, () if unused
    constants: tuple[Constant, ...]
    scores: tuple[Scores, ...]
    branches: tuple[Branch, ...]
    carriers: Mapping[
        str, tuple[str, ...]
    ]  # of a matrix: gain and shift of the norm that feeds it and nothing else
