"""Facts about a model that only a forward pass shows.

Two small instances of the model, one four times as wide, run once under `trace`. Their differences
show how the forward code depends on the width: Gemma multiplies embeddings by sqrt(n), T5 its tied
head by n^-1/2, attention divides by a root of the head size. The plan compensates constants that
grow like a power of the width, and reports everything else. The traces also show how tensors of
unknown modules are used, which tensors form residual branches, and which norm precedes a readout.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from torch import Tensor, nn

from orderone.core.errors import InputError, with_code, without_code
from orderone.observe.inventory import TABLE, VECTOR, Layout, inventory, shapes_of, unwrap
from orderone.observe.trace import Constant, Scores, Trace, Use, trace
from orderone.observe.trace.packed import Entries, PackedScores, packed_scores
from orderone.planning import huggingface
from orderone.planning.base import Base, Configuration, built, is_built_from, is_configuration
from orderone.planning.counterparts import counterparts, stack_of
from orderone.planning.example_batch import token_batch
from orderone.planning.options import ExampleBatch
from orderone.planning.roles.experts import ExpertPart, expert_parts, same_names
from orderone.planning.routing import Routing, RoutingChange, routing_of
from orderone.torch_compat import tree_map

NEGLIGIBLE = 0.01  # smaller exponents are rounding


@dataclass(frozen=True)
class Pair:
    """Two instances of a model, one wider than the other, and an example batch for both."""

    small: nn.Module
    large: nn.Module
    inputs: ExampleBatch
    growth: float  # ratio of widths, large over small
    # ratio of head sizes, target over base; None: as traced, or unknown
    head_growth: float | None
    note: str
    owned: bool  # built here, so that it may be changed

    def traces(self) -> tuple[Trace, Trace]:
        """Return the traces of the small and of the large instance."""
        return trace(self.small, self.inputs), trace(self.large, self.inputs)


class NoInstances(Exception):  # noqa: N818
    """No two instances can be traced; the message says why."""


class NoExampleBatch(NoInstances):
    """No example batch was passed, and none can be derived."""


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


@dataclass(frozen=True)
class ForwardFacts:
    """Facts from a forward pass, by names of tensors in the traced instance.

    The traced instance may have fewer layers than the target; see `traced_as`.
    """

    note: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layouts: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict)
    # power of the width that multiplies, by tensor and kind of use
    powers: Mapping[tuple[str, str], float] = field(default_factory=dict)
    # bias -> the matrix or table whose output it is added to, before a constant multiplies both
    biases: Mapping[str, str] = field(default_factory=dict)
    # the same constants in the small instance, and its shapes; names are those of the large one
    constants: Mapping[tuple[str, str], float] = field(default_factory=dict)
    small_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # the same constants, target over base; only for base and target that are partly frozen
    constant_growth: Mapping[tuple[str, str], float] = field(default_factory=dict)
    # by query matrix: size of attention scores in the base for queries and keys of size one
    score_sizes: Mapping[str, float] = field(default_factory=dict)
    branches: Mapping[str, str] = field(default_factory=dict)  # "last" or "inside"
    open_branches: bool = False  # a branch ends without a parameter that could take a factor
    # readout -> tensors of the norm before it, which can take its multiplier
    carriers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    outputs: tuple[str, ...] = ()
    parallel: frozenset[str] = frozenset()  # lists of modules that are not layers: heads, experts
    # mixtures of experts in base and target, by the name that their blocks share
    routing: Mapping[str, RoutingChange] = field(default_factory=dict)
    normalized: frozenset[str] = frozenset()  # matrices whose output a norm divides by its size
    # parameters of a hypernetwork -> the part of their growth (in logarithms) that is the fan-in of
    # the matrix that they write
    generated: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    pair: Pair | None = None
    needs_inputs: bool = False  # not traced, and an example batch of the user would change that

    def traced_as(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """Return, for every tensor of a model, the corresponding tensor of the traced instance."""
        if self.shapes:
            return _counterpart_names(shapes, self.shapes)
        return {}

    def summed_axes(self, traced_as: Mapping[str, str]) -> dict[str, set[int]]:
        """Return the axes over which products with a tensor sum, by name in the model.

        `traced_as` is the result of the method of this name. Tensors that are used in no product
        are left out.
        """
        summed: dict[str, set[int]] = {}
        for name, traced in traced_as.items():
            for layout in self.layouts.get(traced, ()):
                if layout.kind == "matrix":
                    summed.setdefault(name, set()).update(layout.fan_in)
        return summed

    def power(self, name: str, kind: str) -> float:
        """Return the power of the width that multiplies a use of a tensor."""
        return self.powers.get((name, kind), 0.0)

    def constant_at(self, name: str, kind: str, shape: tuple[int, ...]) -> float:
        """Return the constant that multiplies a use of a tensor, in a model where it has `shape`.

        The constant goes like a power of the width, the largest axis that grows.
        """
        value = self.constants.get((name, kind), 1.0)
        power = self.power(name, kind)
        if not power:
            return value
        for size, small, large in zip(
            shape, self.small_shapes[name], self.shapes[name], strict=True
        ):
            if small != large:
                return value * (size / small) ** power
        return value

    def branch(self, name: str) -> str | None:
        """Return the place of a tensor in its residual branch: "last", "inside" or None.

        A tensor next to others of a branch belongs to it, even if it does not read the residual
        stream: keys and values of cross-attention.
        """
        if name in self.branches:
            return self.branches[name]
        parent = name.rpartition(".")[0].rpartition(".")[0]
        inside_a_layer = "*" in stack_of(parent) and not stack_of(parent).endswith("*")
        is_neighbour = any(other.startswith(f"{parent}.") for other in self.branches)
        if inside_a_layer and is_neighbour:
            return "inside"
        return None

    def require_branches(self) -> None:
        """Raise an InputError unless the residual branches are known and end in a parameter."""
        if not self.branches:
            if self.pair is None:
                message = (
                    "depth: the residual branches are found in a forward pass, and none was traced"
                    f" ({without_code(self.note)})"
                )
                raise InputError(message, "needs-example-batch", argument="depth")
            message = "depth: the model has no residual branches; leave depth out"
            raise InputError(message, "no-residual-branches", argument="depth")
        if self.open_branches:
            message = (
                "depth: a residual branch ends without parameters (in a norm without gain, or in a"
                " nonlinearity), so that no tensor can take its factor; leave depth out, or"
                " multiply the branch in the model's code"
            )
            raise InputError(message, "no-residual-branches", argument="depth")


def without_probe(model: nn.Module, base: Base) -> ForwardFacts:
    """Return the facts that are known without a forward pass (probe=False)."""
    note = "probe: skipped (probe=False); multipliers in the forward code are unknown"
    return _without_trace(note, model, base)


def _without_trace(note: str, model: nn.Module, base: Base) -> ForwardFacts:
    return ForwardFacts(note, scores=_declared_scores(model, base), outputs=output_modules(model))


def collect(model: nn.Module, base: Base, inputs: ExampleBatch | None) -> ForwardFacts:
    """Trace the model if possible; otherwise `note` says why not."""
    try:
        pair = _pair(model, base, inputs)
    except NoInstances as reason:
        note = with_code(f"probe: not run: {reason}", "probe-not-run")
        facts = _without_trace(note, model, base)
        return replace(facts, needs_inputs=isinstance(reason, NoExampleBatch))
    try:
        small, large = pair.traces()
    except Exception as error:  # the user's forward code may raise anything
        failure = f"probe: not run: the forward pass failed ({type(error).__name__}: {error})"
        return _without_trace(with_code(failure, "probe-not-run"), model, base)
    facts = _compare(small, large, pair, output_modules(model))
    return replace(
        facts,
        score_sizes=_score_sizes(small, large, pair, base),
        routing=_routing(model, base, pair, facts),
    )


def _routing(
    model: nn.Module, base: Base, pair: Pair, facts: ForwardFacts
) -> dict[str, RoutingChange]:
    """Measure the routing of the mixtures of experts that differ between base and target.

    A block is left out if it cannot be called on its own.
    """
    if not _experts_of(pair.large, facts):
        return {}
    small = pair.small
    large = pair.large
    if pair.owned:  # both instances have the experts of the base
        ours = getattr(unwrap(model), "config", None)
        theirs = getattr(base.module, "config", None)
        assert is_configuration(ours)
        assert is_configuration(theirs)
        configs = huggingface.routing_pair(model, ours, theirs)
        if configs is None:
            return {}
        small, large = (built(model, config, device="cpu").float() for config in configs)
    try:
        before = _routing_of(small, pair.inputs, facts)
        after = _routing_of(large, pair.inputs, facts)
    except Exception:  # the block's forward code may raise anything
        return {}
    counts = _expert_counts(small, facts)
    changes: dict[str, RoutingChange] = {}
    for name, count in _expert_counts(large, facts).items():
        if name in before and name in after:
            change = RoutingChange(before[name], after[name])
            if count != counts.get(name) or (change.active, change.weights) != (1, 1):
                changes[name] = change
    return changes


def _expert_counts(model: nn.Module, facts: ForwardFacts) -> dict[str, int]:
    """Return the number of experts by the name that blocks share."""
    parts = _experts_of(model, facts).values()
    return {stack_of(part.block): part.count[1] for part in parts}


def _routing_of(model: nn.Module, inputs: ExampleBatch, facts: ForwardFacts) -> dict[str, Routing]:
    shapes = shapes_of(model)
    traced_as = facts.traced_as(shapes)
    fan_in: dict[str, int] = {}
    parts = _experts_of(model, facts)
    for name in parts:
        for layout in facts.layouts.get(traced_as[name], ()):
            if layout.kind == "matrix":
                fan_in[name] = prod(shapes[name][axis] for axis in layout.fan_in)
    return routing_of(model, inputs, parts, fan_in)


def _experts_of(model: nn.Module, facts: ForwardFacts) -> dict[str, ExpertPart]:
    """Return the experts and routers of a model by itself."""
    items = inventory(model)
    shapes = {name: item.shape for name, item in items.items()}
    declared = [name for name, item in items.items() if any(place.layout for place in item.places)]
    summed = facts.summed_axes(facts.traced_as(shapes))
    return expert_parts(shapes, shapes, same_names(shapes), declared, facts.parallel, summed)


def output_modules(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the output layer of a Hugging Face model; () for other models."""
    inner = unwrap(model)
    get_output = getattr(inner, "get_output_embeddings", None)
    if get_output is None:
        return ()
    try:
        output = get_output()
    except (NotImplementedError, AttributeError):
        return ()
    if output is None:
        return ()
    return tuple(name for name, module in inner.named_modules() if module is output)


def _compare(small: Trace, large: Trace, pair: Pair, outputs: tuple[str, ...]) -> ForwardFacts:
    findings: list[str] = []
    shapes = shapes_of(pair.large)
    small_shapes = shapes_of(pair.small)
    same = _counterpart_names(shapes, small_shapes)
    scores = _scores(small, large, same, pair, findings)
    in_scores: set[str] = set()
    for score in large.scores:
        in_scores.update(score.queries, score.keys)
    carriers: dict[str, tuple[str, ...]] = {}
    for name, norm in large.carriers.items():
        if _is_in_the_target(norm, pair):
            carriers[name] = norm
    layouts: dict[str, tuple[Layout, ...]] = {}
    for name, uses in large.uses.items():
        layouts[name] = _layouts(uses, len(shapes[name]))
    return ForwardFacts(
        note=pair.note,
        shapes=shapes,
        layouts=layouts,
        powers=_powers(small, large, same, pair, in_scores, findings),
        biases=_biases(large),
        constants=_constants(small, large, same),
        small_shapes={name: small_shapes[other] for name, other in same.items()},
        constant_growth=_constant_growth(small, large, same) if _has_adapters(pair) else {},
        branches=_branches(large),
        open_branches=any(not branch.last for branch in large.branches),
        carriers=carriers,
        scores=scores,
        outputs=outputs,
        parallel=frozenset(stack_of(name) for name in large.parallel),
        normalized=large.normalized,
        generated=_generated(small, large, same),
        findings=tuple(dict.fromkeys(findings)),
        pair=pair,
    )


def _counterpart_names(
    shapes: Mapping[str, tuple[int, ...]], base_shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, counterpart in counterparts(shapes, base_shapes).items():
        names[name] = counterpart.name
    return names


def _branches(traced: Trace) -> dict[str, str]:
    places: dict[str, str] = {}
    for branch in traced.branches:
        places = dict.fromkeys(branch.inside, "inside") | places
        places |= dict.fromkeys(branch.last, "last")
    return places


def _generated(small: Trace, large: Trace, same: Mapping[str, str]) -> dict[str, float]:
    """Return the part of the growth that is fan-in, for parameters that write a growing matrix."""
    parts: dict[str, float] = {}
    for name, (fan_in, fan_out) in large.generated.items():
        small_in, small_out = small.generated.get(same[name], (fan_in, fan_out))
        growth = fan_in * fan_out / (small_in * small_out)
        if growth != 1:
            parts[name] = math.log(fan_in / small_in) / math.log(growth)
    return parts


def _is_in_the_target(names: tuple[str, ...], pair: Pair) -> bool:
    """Return whether the target has the same norm.

    False for a norm inside a layer of a small instance: it represents the norms of many layers.
    """
    return not pair.owned or not any("*" in stack_of(name) for name in names)


def _layouts(uses: tuple[Use, ...], dimensions: int) -> tuple[Layout, ...]:
    """Return the layouts of the uses whose summed axes are known. A tensor without use counts as a
    vector: like a bias of zero, it does nothing."""
    if not uses:
        return (VECTOR,)
    layouts: dict[Layout, None] = {}
    for use in uses:
        unknown = use.kind == "other" or (use.kind == "matrix" and not use.fan_in)
        if not unknown:
            layouts[_layout(use, dimensions)] = None
    return tuple(layouts)


def _layout(use: Use, dimensions: int) -> Layout:
    if use.kind == "lookup":
        return Layout("lookup", (0,), tuple(range(1, dimensions)))
    if use.kind in ("shift", "table") and dimensions > 1:
        return TABLE
    if use.kind not in ("matrix", "convolution") or use.fan_in is None:
        return VECTOR
    fan_in = use.fan_in
    if use.kind == "convolution":
        fan_in = fan_in[:1]
    fan_out = tuple(axis for axis in range(dimensions) if axis not in use.fan_in)
    return Layout("matrix", fan_in, fan_out)


# --- constants ------------------------------------------------------------------------------------


def _powers(
    small: Trace,
    large: Trace,
    same: Mapping[str, str],
    pair: Pair,
    in_scores: set[str],
    findings: list[str],
) -> dict[tuple[str, str], float]:
    """Return the power of the width in the constants at each use."""
    is_deeper = len(large.uses) > len(small.uses)
    before = constants_by_use(small, is_deeper)
    sizes_before = sizes_by_use(small)
    sizes = sizes_by_use(large)
    result: dict[tuple[str, str], float] = {}
    for (name, kind), value in constants_by_use(large, is_deeper).items():
        if name in in_scores:
            continue
        # code and hooks leave out a factor of one, which is that of the smaller instance
        power = _power(before.get((same[name], kind), 1.0), value, pair.growth)
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


def _constants(small: Trace, large: Trace, same: Mapping[str, str]) -> dict[tuple[str, str], float]:
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


def _has_adapters(pair: Pair) -> bool:
    """Return whether the traced models are base and target, partly frozen."""
    trained = {parameter.requires_grad for parameter in pair.large.parameters()}
    return not pair.owned and len(trained) == 2


def _constant_growth(
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


def constants_by_use(
    traced: Trace, without_terms: bool = False
) -> dict[tuple[str, str], float | None]:
    """Return the product of all constants at the first use of each kind of every tensor.

    Without terms: constants that multiply one term of a sum are left out. Where layers are added
    along with the width, these are the multipliers of residual branches, which belong to the depth.
    """
    products: dict[tuple[str, str], float | None] = {}
    for at, constants in _at_first_use(traced).items():
        counted = [c.value for c in constants if not (without_terms and c.added)]
        values = [value for value in counted if value is not None]
        if counted:
            products[at] = math.prod(values) if len(values) == len(counted) else None
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
            if not constants or constants[0].at == constant.at:
                constants.append(constant)
    return by_use


def _scaled_uses(constant: Constant, traced: Trace) -> list[tuple[str, str]]:
    """Return the uses whose output a constant multiplies; after a norm, those whose input it
    multiplies."""
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


def _biases(traced: Trace) -> dict[str, str]:
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


def _power(small: float | None, large: float | None, growth: float) -> float | None:
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


# --- attention ------------------------------------------------------------------------------------


def _scores(
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


def _score_sizes(small: Trace, large: Trace, pair: Pair, base: Base) -> dict[str, float]:
    """Return the size of the base's scores for queries and keys of size one: scale sqrt(head_size).

    It is 1 if scores are divided by the root of the head size, sqrt(head_size) in T5, which divides
    by nothing. Names are those of the large instance.
    """
    same = _counterpart_names(shapes_of(pair.large), shapes_of(pair.small))
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
            power = 0.5 + (_power(narrow.scale, wide.scale, grown) or 0.0)
            size *= (head_size / narrow.head_size) ** power
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
    if grown == 1 and abs(math.log(wide_scale / narrow_scale)) > NEGLIGIBLE:
        note = (
            f"{where} are scaled by {narrow_scale:.4g} and, in a wider instance with the same head"
            f" size, by {wide_scale:.4g}; let the model's scale depend on the head size only"
        )
        findings.append(with_code(note, "attention-scale"))
    growth = pair.head_growth if pair.owned else grown
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
        power=_power(narrow_scale, wide_scale, grown) or 0.0,
        separate=not packed and not _offset_gain(wide.queries, pair) and not _hidden(wide, large),
    )


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


def _declared_scores(model: nn.Module, base: Base) -> tuple[Score, ...]:
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
    prefix = f"{name}." if name else ""
    for attribute in ("in_proj_weight", "in_proj_bias"):
        if getattr(module, attribute) is not None:
            queries[prefix + attribute] = Entries(0, 3 * width, ((0, width),))
            keys[prefix + attribute] = Entries(0, 3 * width, ((width, 2 * width),))
    if module.in_proj_weight is None:
        queries[f"{prefix}q_proj_weight"] = Entries(0, width, ((0, width),))
        keys[f"{prefix}k_proj_weight"] = Entries(0, width, ((0, width),))
    return PackedScores(queries, keys)


# --- two instances to trace -----------------------------------------------------------------------


def _pair(model: nn.Module, base: Base, inputs: ExampleBatch | None) -> Pair:
    """Return two instances to trace; raise NoInstances if there are none.

    Small instances of a Hugging Face model are built from the base's configuration. For any other
    model the instances are base and target, if there is an example batch.
    """
    if base.module is None:
        raise NoInstances("the base is a saved plan, not a model")
    inner = unwrap(model)
    ours = getattr(inner, "config", None)
    theirs = getattr(base.module, "config", None)
    if is_configuration(ours) and is_configuration(theirs):
        if is_built_from(inner, ours):
            return _small_instances(inner, ours, theirs, inputs)
        inputs = inputs or _example_that_runs(inner, base.module, ours)
    derived = None
    if inputs is None:
        derived = token_batch(inner, base.module)
        if derived is not None and not derived.is_meta:
            derived = (
                None if _failure(inner, derived) or _failure(base.module, derived) else derived
            )
    batch = derived if inputs is None else inputs
    if batch is None:
        raise NoExampleBatch(
            "no example batch; pass plan(..., inputs=...) to find multipliers in the forward code"
        )
    pair = _base_and_target(inner, base.module, batch)
    if derived is not None:
        return replace(pair, note="probe: base and target on random token indices")
    return pair


def _example_that_runs(
    model: nn.Module, base: nn.Module, config: Configuration
) -> ExampleBatch | None:
    """Return a random batch for a Hugging Face model that was changed after it was built."""
    if any(p.is_meta for p in (*model.parameters(), *base.parameters())):
        return None
    for batch in huggingface.examples(model, config):
        if _failure(model, batch) is None and _failure(base, batch) is None:
            return batch
    return None


def _base_and_target(model: nn.Module, base: nn.Module, inputs: ExampleBatch) -> Pair:
    parameters = [*model.parameters(), *base.parameters()]
    if any(p.is_meta for p in parameters):
        raise NoInstances(
            "base or target is on the meta device, where constants cannot be read; build both on"
            " the CPU"
        )
    if any(hasattr(p, "device_mesh") for p in parameters):
        raise NoInstances("the model is sharded; make the plan before sharding it")
    if len({p.device for p in parameters}) > 1:
        raise NoInstances("base and target are on different devices; put them on one")
    return Pair(
        small=base,
        large=model,
        inputs=inputs,
        growth=_usual_growth(base, model),
        head_growth=None,
        note="probe: base and target on the example batch",
        owned=False,
    )


def _usual_growth(base: nn.Module, model: nn.Module) -> float:
    """Return the ratio by which most axes of equally named tensors grow."""
    base_parameters = dict(base.named_parameters())
    ratios: list[float] = []
    for name, parameter in model.named_parameters():
        counterpart = base_parameters.get(name)
        if counterpart is None or counterpart.dim() != parameter.dim():
            continue
        for size, base_size in zip(parameter.shape, counterpart.shape, strict=True):
            if size != base_size:
                ratios.append(size / base_size)
    if not ratios:
        return 1.0
    return max(set(ratios), key=ratios.count)


def _small_instances(
    model: nn.Module, ours: Configuration, theirs: Configuration, inputs: ExampleBatch | None
) -> Pair:
    """Build a small base, and the same four times as wide."""
    try:
        narrow, wide = huggingface.small_pair(model, ours, theirs)
        small = built(model, narrow, device="cpu").float()
        large = built(model, wide, device="cpu").float()
        batches: list[ExampleBatch] = list(huggingface.examples(small, narrow))
    except Exception as error:  # configurations may raise anything when they are changed
        raise NoInstances(
            f"small instances could not be built ({type(error).__name__}: {error})"
        ) from error
    if inputs is not None:
        batches.append(tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, inputs))

    def like_the_target() -> nn.Module:
        config = huggingface.proportional_to(model, ours, theirs)
        return built(model, config, device="cpu").float()

    batch = _first_that_runs(small, [batch for batch in batches if batch], like_the_target)
    widths = dict.fromkeys((huggingface.width_of(narrow), huggingface.width_of(wide)))
    grows = narrow.to_dict() != wide.to_dict()
    return Pair(
        small=small,
        large=large,
        inputs=batch,
        growth=huggingface.GROWTH if grows else 1.0,
        head_growth=huggingface.head_growth(ours, theirs),
        note=f"probe: small instances of width {' and '.join(widths)}",
        owned=True,
    )


def _first_that_runs(
    small: nn.Module, batches: list[ExampleBatch], like_the_target: Callable[[], nn.Module]
) -> ExampleBatch:
    """Return the first batch that the small instance accepts.

    If it accepts none and a small copy of the target does, the sizes of the base are inconsistent.
    """
    errors = [_failure(small, batch) for batch in batches]
    if None in errors:
        return batches[errors.index(None)]
    if not errors:
        raise NoInstances(
            "no example batch is known for this kind of model; pass plan(..., inputs=...)"
        )
    first_error = f"{type(errors[0]).__name__}: {errors[0]}"
    copy = like_the_target()
    if any(_failure(copy, batch) is None for batch in batches):
        message = (
            f"base: a model of these sizes does not run ({first_error}); change sizes together that"
            " depend on each other, such as num_attention_heads and num_key_value_heads, or"
            " hidden_size and intermediate_size"
        )
        raise InputError(message, "inconsistent-sizes", argument="base")
    raise NoInstances(
        f"the forward pass failed ({first_error}); pass an example batch that works:"
        " plan(..., inputs=...)"
    )


def _failure(model: nn.Module, inputs: ExampleBatch) -> Exception | None:
    try:
        trace(model, inputs)
    except Exception as error:  # the model's forward code may raise anything
        return error
    return None
