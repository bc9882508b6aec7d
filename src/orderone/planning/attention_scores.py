"""Attention scores in the forward code: which tensors make queries and keys, and their scale.

Scores divided by a root of the head size have scale = head_size^-1/2. A narrow and a wide instance
show the power. Packed projections hold queries, keys and values in rows of one tensor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import nn

from orderone.core.errors import with_code
from orderone.observe.inventory import shapes_of, unwrap
from orderone.observe.trace import Scores, Trace
from orderone.observe.trace.packed import Entries, PackedScores, packed_scores
from orderone.planning import huggingface
from orderone.planning.base import Base, is_configuration
from orderone.planning.counterparts import counterpart_names, stack_of
from orderone.planning.forward_constants import NEGLIGIBLE, power_of_growth
from orderone.planning.traced_pair import Pair

ROUNDING = 1e-6  # of a scale that the forward code computes in float32


@dataclass(frozen=True)
class Score:
    """Attention scores with scale = head_size^power.

    `separate`: queries have tensors that can take a factor, not packed with keys. `packed`: rows of
    tensors that hold queries, keys and values.
    """

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    head_growth: float
    power: float
    separate: bool
    packed: PackedScores | None = None


def traced_scores(
    small: Trace, large: Trace, same: Mapping[str, str], pair: Pair, findings: list[str]
) -> tuple[Score, ...]:
    by_queries = {score.queries: score for score in small.scores}
    result: list[Score] = []
    for wide in large.scores:
        narrow = by_queries.get(tuple(same[name] for name in wide.queries))
        if narrow is None:
            continue
        score = _score(narrow, wide, small, large, pair, findings)
        if score is not None:
            result.append(score)
    return _with_rows(result, large, same, pair)


def score_sizes(small: Trace, large: Trace, pair: Pair, base: Base) -> dict[str, float]:
    """Return the size of the base's scores for queries and keys of size one: scale sqrt(head_size).

    It is 1 if scores are divided by the root of the head size, sqrt(head_size) in T5, which divides
    by nothing. Names are those of the large instance.
    """
    same = counterpart_names(shapes_of(pair.large), shapes_of(pair.small))
    by_queries = {score.queries: score for score in small.scores}
    head_size = None
    config = getattr(base.module, "config", None)
    if pair.owned and is_configuration(config):
        head_size = huggingface.head_size(config)
    sizes: dict[str, float] = {}
    for wide in large.scores:
        narrow = by_queries.get(tuple(same[name] for name in wide.queries))
        if narrow is None or not narrow.scale or not wide.scale or narrow.normalized:
            continue
        size = abs(narrow.scale) * narrow.head_size**0.5
        grown = wide.head_size / narrow.head_size
        if grown != 1 and head_size is not None:
            power = 0.5 + (power_of_growth(narrow.scale, wide.scale, grown) or 0.0)
            size *= (head_size / narrow.head_size) ** power
        if math.isclose(size, 1.0, rel_tol=ROUNDING):
            size = 1.0
        for name in set(wide.queries) - set(wide.keys):
            sizes[name] = size
    return sizes


def _with_rows(
    scores: list[Score], large: Trace, same: Mapping[str, str], pair: Pair
) -> tuple[Score, ...]:
    """Return the scores with the rows of queries and keys in packed projections."""
    fan_in: dict[str, tuple[int, ...]] = {}
    for score in scores:
        for name in score.queries:
            if name in score.keys:
                for use in large.uses[name]:
                    if use.kind in ("matrix", "convolution") and use.fan_in is not None:
                        fan_in[name] = use.fan_in
    if not fan_in:
        return tuple(scores)
    try:
        rows = packed_scores(pair.large, pair.inputs, fan_in)
        if pair.owned:  # the target has other sizes: rows must be fractions of them
            narrow = {same[name]: axes for name, axes in fan_in.items()}
            narrow_rows = packed_scores(pair.small, pair.inputs, narrow)
            rows = {n: r for n, r in rows.items() if _is_alike(r, narrow_rows.get(same[n]), same)}
    except Exception:  # the model's forward code may raise anything, such as in-place changes
        return tuple(scores)
    result: list[Score] = []
    for score in scores:
        for name in score.queries:
            if name in rows:
                score = replace(score, packed=rows[name])
        result.append(score)
    return tuple(result)


def _is_alike(wide: PackedScores, narrow: PackedScores | None, same: Mapping[str, str]) -> bool:
    """Return whether the rows are the same fractions of the tensors in both instances."""
    if narrow is None:
        return False
    pairs = ((wide.queries, narrow.queries), (wide.keys, narrow.keys))
    for wide_rows, narrow_rows in pairs:
        for name, entries in wide_rows.items():
            other = narrow_rows.get(same[name])
            if other is None or other.scaled_to(entries.size) != entries:
                return False
    return True


def _score(
    narrow: Scores, wide: Scores, small: Trace, large: Trace, pair: Pair, findings: list[str]
) -> Score | None:
    stacks = ", ".join(stack_of(name) for name in wide.queries)
    where = f"attention scores at {stacks}"
    grown = wide.head_size / narrow.head_size
    narrow_scale = _common_scale(narrow, small)
    wide_scale = _common_scale(wide, large)
    if narrow_scale is None or wide_scale is None:
        note = f"the scale of {where} could not be read, and the plan does not compensate it"
        findings.append(with_code(note, "constant-not-read"))
        return None
    differs = abs(math.log(wide_scale / narrow_scale)) > NEGLIGIBLE
    if grown == 1 and differs and not _has_adapter(wide, pair):
        note = (
            f"{where} are scaled by {narrow_scale:.4g} and, in a wider instance with the same head"
            f" size, by {wide_scale:.4g}; let the model's scale depend on the head size only"
        )
        findings.append(with_code(note, "attention-scale"))
    if pair.owned:
        growth = pair.head_growth
    else:
        growth = grown
    if growth is None:
        note = (
            f"{where}: head sizes grow by different ratios in the parts of the model; the scores"
            " are not changed"
        )
        findings.append(with_code(note, "attention-scale"))
    if growth is None or growth == 1:
        return None
    packed = bool(set(wide.queries) & set(wide.keys))
    return Score(
        queries=_with_biases(wide.queries, large),
        keys=_with_biases(wide.keys, large),
        head_growth=growth,
        power=power_of_growth(narrow_scale, wide_scale, grown) or 0.0,
        separate=not packed and not _offset_gain(wide.queries, pair) and not _hidden(wide, large),
    )


def _has_adapter(scores: Scores, pair: Pair) -> bool:
    """Return whether queries or keys come from frozen and trained tensors.

    A constant may then belong to the adapter alone, multiplied into its weights.
    """
    parameters = dict(pair.large.named_parameters())
    for names in (scores.queries, scores.keys):
        if len({parameters[name].requires_grad for name in names}) == 2:
            return True
    return False


def _common_scale(scores: Scores, traced: Trace) -> float | None:
    """Return the scale without constants that multiply one term of a sum, as in an adapter."""
    scale = scores.scale
    for constant in traced.constants:
        terms = set(constant.after)
        in_a_sum = terms < set(scores.queries) or terms < set(scores.keys)
        if scale is not None and terms and in_a_sum and constant.value:
            scale /= constant.value
    return scale


def _hidden(scores: Scores, traced: Trace) -> bool:
    """Return whether a norm without gain follows the queries: a factor before it has no effect."""
    if not scores.normalized:
        return False
    for name in scores.queries:
        if any(use.kind in ("matrix", "convolution") for use in traced.uses[name]):
            return True
    return False


def _with_biases(names: tuple[str, ...], traced: Trace) -> tuple[str, ...]:
    with_biases = list(names)
    for name in names:
        if name.endswith(".weight"):
            with_biases.append(f"{name.removesuffix('.weight')}.bias")
    return tuple(dict.fromkeys(name for name in with_biases if name in traced.uses))


def _offset_gain(names: tuple[str, ...], pair: Pair) -> bool:
    """Return whether one of them is a gain stored as an offset from one: it starts at zero and
    cannot take a factor."""
    parameters = dict(pair.large.named_parameters())
    return any(parameters[name].dim() == 1 and not parameters[name].any() for name in names)


def declared_scores(model: nn.Module, base: Base) -> tuple[Score, ...]:
    """Return the scores of nn.MultiheadAttention, which has its head size as an attribute.

    Its packed tensors have queries first, then keys, then values.
    """
    if base.module is None:
        return ()
    base_modules = dict(base.module.named_modules())
    scores: list[Score] = []
    for name, module in unwrap(model).named_modules():
        other = base_modules.get(name)
        if not isinstance(module, nn.MultiheadAttention):
            continue
        if not isinstance(other, nn.MultiheadAttention) or module.head_dim == other.head_dim:
            continue
        growth = module.head_dim / other.head_dim
        packed = _declared_rows(name, module)
        names = tuple(packed.queries)
        scores.append(Score(names, tuple(packed.keys), growth, -0.5, separate=False, packed=packed))
    return tuple(scores)


def _declared_rows(name: str, module: nn.MultiheadAttention) -> PackedScores:
    """Return the rows of queries and keys in the tensors of nn.MultiheadAttention."""
    width = module.embed_dim
    queries: dict[str, Entries] = {}
    keys: dict[str, Entries] = {}
    if name:
        prefix = f"{name}."
    else:
        prefix = ""
    for attribute in ("in_proj_weight", "in_proj_bias"):
        if getattr(module, attribute) is not None:
            queries[prefix + attribute] = Entries(0, 3 * width, ((0, width),))
            keys[prefix + attribute] = Entries(0, 3 * width, ((width, 2 * width),))
    if module.in_proj_weight is None:
        queries[f"{prefix}q_proj_weight"] = Entries(0, width, ((0, width),))
        keys[f"{prefix}k_proj_weight"] = Entries(0, width, ((0, width),))
    return PackedScores(queries, keys)
