"""Constants in the forward code that multiply uses of tensors, and how they depend on the width.

A use is a tensor and a kind: ("words.weight", "lookup"). The constants of a narrow and of a wide
instance give the power of the width: Gemma multiplies embeddings by n^1/2, T5 its tied head by
n^-1/2.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from orderone.core.errors import with_code
from orderone.observe.trace import Constant, Trace
from orderone.planning.traced_pair import Pair

NEGLIGIBLE = 0.01  # smaller exponents are rounding


@dataclass(frozen=True)
class ScaledTerm:
    """A power of the width that multiplies an activation, at a place that fixes the size."""

    linear_in: tuple[str, ...]  # matrices and tables that could take the power
    near: tuple[str, ...]  # the last tensors that are used before it
    power: float
    size: float  # exponent of what it multiplies, in the models as they were traced
    others: float | None  # exponent of the rest of the sum; None if it is no sum, or zero
    # of a sum of products of activations: its exponent if all products had the same sign
    aligned: float | None = None


def powers_by_use(
    small: Trace,
    large: Trace,
    same: Mapping[str, str],
    pair: Pair,
    in_scores: Collection[str],
    findings: list[str],
) -> dict[tuple[str, str], float]:
    """Return the power of the width in the constants at each use.

    Factors of queries and keys are a part of the scores' scale, except those inside of a layer.
    """
    is_deeper = len(large.uses) > len(small.uses)
    sizes_before = sizes_by_use(small)
    sizes = sizes_by_use(large)
    result: dict[tuple[str, str], float] = {}
    before = constants_by_use(small, is_deeper, {same[name] for name in in_scores})
    for (name, kind), value in constants_by_use(large, is_deeper, in_scores).items():
        # code and hooks leave out a factor of one, which is that of the smaller instance
        power = power_of_growth(before.get((same[name], kind), 1.0), value, pair.growth)
        if power is not None:
            size_before = sizes_before.get((same[name], kind), 1.0)
            power += _half_powers(size_before, sizes[name, kind], pair.growth)
        if power is None:
            note = (
                f"a constant that multiplies {name} could not be read; if it depends on the width,"
                " the plan does not compensate it"
            )
            findings.append(with_code(note, "constant-not-read"))
        elif abs(power) > NEGLIGIBLE:
            result[name, kind] = power
    return result


def constants_of_base(
    small: Trace, large: Trace, same: Mapping[str, str]
) -> dict[tuple[str, str], float]:
    """Return the constants of the small instance that could be read and are not zero."""
    values = constants_by_use(small)
    sizes = sizes_by_use(small)
    result: dict[tuple[str, str], float] = {}
    for name, kind in constants_by_use(large):
        at = (same[name], kind)
        value = values.get(at)
        if value is not None and math.isfinite(value) and value != 0:
            result[name, kind] = abs(value) * sizes[at]
    return result


def constant_growth(
    small: Trace, large: Trace, same: Mapping[str, str]
) -> dict[tuple[str, str], float]:
    """Return the ratio of the constants of two traces at every use; 1 where the code has none.

    A use is left out if one of its constants could not be read.
    """
    before = constants_by_use(small)
    after = constants_by_use(large)
    result: dict[tuple[str, str], float] = {}
    for name, uses in large.uses.items():
        for kind in dict.fromkeys(use.kind for use in uses):
            value = after.get((name, kind), 1.0)
            base_value = before.get((same[name], kind), 1.0)
            if value and base_value and math.isfinite(value / base_value):
                result[name, kind] = value / base_value
    return result


def scaled_terms(small: Trace, large: Trace, pair: Pair) -> tuple[ScaledTerm, ...]:
    """Return the powers of the width at places that fix the size, with the exponents there.

    There are none if the forward code has more such places at one of the widths: layers that are
    added along with the width are divided by their number.
    """
    if len(small.terms) != len(large.terms) or pair.growth == 1:
        return ()
    terms: list[ScaledTerm] = []
    for before, after in zip(small.terms, large.terms, strict=True):
        power = power_of_growth(before.value, after.value, pair.growth)
        size = power_of_growth(before.size, after.size, pair.growth)
        others = power_of_growth(before.others, after.others, pair.growth)
        if power is None or size is None or abs(power) <= NEGLIGIBLE:
            continue
        aligned = power_of_growth(before.aligned, after.aligned, pair.growth)
        if others is None and after.others is not None and aligned is None:
            continue  # zero, or unknown
        terms.append(ScaledTerm(after.linear_in, after.near, power, size - power, others, aligned))
    return tuple(terms)


def powers_in_layers(
    small: Trace, large: Trace, same: Mapping[str, str], pair: Pair
) -> dict[str, float]:
    """Return the power of the width by which layers multiply their own product, by tensor."""
    return _powers_of(
        [constant for constant in small.constants if constant.inner],
        [constant for constant in large.constants if constant.inner],
        (small, large, same, pair),
    )


def powers_before_layers(
    small: Trace, large: Trace, same: Mapping[str, str], pair: Pair
) -> dict[str, float]:
    """Return the power of the width by which code multiplies what a layer reads, by tensor."""
    return _powers_of(
        [constant for constant in small.constants if _is_before(constant)],
        [constant for constant in large.constants if _is_before(constant)],
        (small, large, same, pair),
    )


def _is_before(constant: Constant) -> bool:
    return not constant.inner and not constant.after and constant.size == 1


def _powers_of(
    narrow: Sequence[Constant],
    wide: Sequence[Constant],
    traces: tuple[Trace, Trace, Mapping[str, str], Pair],
) -> dict[str, float]:
    small, large, same, pair = traces
    before = constants_by_use(replace(small, constants=tuple(narrow)))
    powers: dict[str, float] = {}
    for (name, kind), value in constants_by_use(replace(large, constants=tuple(wide))).items():
        power = power_of_growth(before.get((same[name], kind), 1.0), value, pair.growth)
        if kind != "shift" and power is not None and abs(power) > NEGLIGIBLE:
            powers[name] = power
    return powers


def constants_by_use(
    traced: Trace, without_terms: bool = False, only_inner: Collection[str] = ()
) -> dict[tuple[str, str], float | None]:
    """Return the product of all constants at the first use of each kind of every tensor.

    For the tensors in `only_inner`, only the constants inside of their layers count.

    Without terms: constants that multiply one term of a sum are left out. Where layers are added
    along with the width, these are the multipliers of residual branches, which belong to the depth.
    """
    products: dict[tuple[str, str], float | None] = {}
    for at, constants in _at_first_use(traced).items():
        if at[0] in only_inner:
            constants = [constant for constant in constants if constant.inner]
        counted = [c.value for c in constants if not (without_terms and c.added)]
        values = [value for value in counted if value is not None]
        if counted:
            if len(values) == len(counted):
                products[at] = math.prod(values)
            else:
                products[at] = None
    return products


def sizes_by_use(traced: Trace) -> dict[tuple[str, str], float]:
    """Return the size of what the constants at each use multiply, if it was just normalized."""
    sizes: dict[tuple[str, str], float] = {}
    for at, constants in _at_first_use(traced).items():
        sizes[at] = math.prod(constant.size for constant in constants)
    return sizes


def _at_first_use(traced: Trace) -> dict[tuple[str, str], list[Constant]]:
    """Return the constants at the first use of each kind of every tensor.

    Other uses of the same kind, by an encoder and a decoder, are assumed to be alike.
    """
    by_use: dict[tuple[str, str], list[Constant]] = {}
    for constant in traced.constants:
        for at in _scaled_uses(constant, traced):
            constants = by_use.setdefault(at, [])
            first = next((other.at for other in constants if other.at), constant.at)
            if not constant.at or constant.at == first or set(constant.at) & set(first):
                constants.append(constant)
    return by_use


def _scaled_uses(constant: Constant, traced: Trace) -> list[tuple[str, str]]:
    """Return the uses whose output a constant multiplies; after a norm, those whose input it
    multiplies."""
    if constant.inner and not constant.uses and not constant.before:
        return _uses_of_scaled_weight(constant, traced)
    if "lookup" in constant.uses:
        kind = "lookup"
        kinds = {"lookup"}
    elif "matrix" in constant.uses or "convolution" in constant.uses:
        kind = "matrix"
        kinds = {"matrix", "convolution"}
    else:
        return [(name, "matrix") for name in constant.before]
    result: list[tuple[str, str]] = []
    for name in constant.after:
        if any(use.kind in kinds for use in traced.uses[name]):
            result.append((name, kind))
        elif any(use.kind == "shift" for use in traced.uses[name]):
            result.append((name, "shift"))
    return result


def _uses_of_scaled_weight(constant: Constant, traced: Trace) -> list[tuple[str, str]]:
    """Return the use of a weight that its layer multiplies before the product, if it is the only
    one."""
    result: list[tuple[str, str]] = []
    for name in constant.after:
        kinds = {use.kind for use in traced.uses[name]}
        if kinds == {"lookup"}:
            result.append((name, "lookup"))
        elif kinds and kinds <= {"matrix", "convolution"}:
            result.append((name, "matrix"))
    return result


def scaled_biases(traced: Trace) -> dict[str, str]:
    """Return the matrix or table of every bias that a constant multiplies along with it."""
    result: dict[str, str] = {}
    for constant in traced.constants:
        scaled = _scaled_uses(constant, traced)
        makers = [name for name, kind in scaled if kind != "shift"]
        for name, kind in scaled:
            if kind == "shift" and makers:
                result[name] = _beside(name, makers)
    return result


def _beside(name: str, makers: Sequence[str]) -> str:
    """Return the maker in the same module, or else the first."""
    module = name.rpartition(".")[0]
    for maker in makers:
        if maker.rpartition(".")[0] == module:
            return maker
    return makers[0]


def power_of_growth(small: float | None, large: float | None, growth: float) -> float | None:
    """Return the exponent of a number; None if it is unknown, zero or changes its sign."""
    if small is None or large is None or not (math.isfinite(small) and math.isfinite(large)):
        return None
    if small == large or growth == 1:
        return 0.0
    if small * large <= 0:
        return None
    return _rational(math.log(large / small) / math.log(growth))


def _half_powers(small: float, large: float, growth: float) -> float:
    """Return the exponent of a measured size, rounded to a multiple of one half."""
    if small == large or growth == 1:
        return 0.0
    return round(2 * math.log(large / small) / math.log(growth)) / 2


def _rational(exponent: float) -> float:
    """Return the nearest multiple of 1/12 if the exponent equals it up to rounding."""
    near = round(exponent * 12) / 12
    if abs(near - exponent) < 1e-3:
        return near
    return exponent
