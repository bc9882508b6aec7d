"""Facts about a model that only a forward pass shows.

Two small instances of the model, one four times as wide, run once under `trace`. Their differences
show how the forward code depends on the width: Gemma multiplies embeddings by sqrt(n), T5 its tied
head by n^-1/2, attention divides by a root of the head size. The plan compensates constants that
grow like a power of the width, and reports everything else. The traces also show how tensors of
unknown modules are used, which tensors form residual branches, and which norm precedes a readout.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from torch import nn

from orderone.core.errors import InputError, with_code, without_code
from orderone.observe.derivatives import needs_gradients
from orderone.observe.inventory import TABLE, VECTOR, Layout, inventory, shapes_of, unwrap
from orderone.observe.trace import Trace, Use, call_with, undisturbed
from orderone.planning import huggingface
from orderone.planning.attention_scores import Score, declared_scores, score_sizes, traced_scores
from orderone.planning.base import Base, built, is_configuration
from orderone.planning.counterparts import counterpart_names, stack_of
from orderone.planning.forward_constants import (
    ScaledTerm,
    constant_growth,
    constants_of_base,
    powers_before_layers,
    powers_by_use,
    powers_in_layers,
    scaled_biases,
    scaled_terms,
)
from orderone.planning.options import ExampleBatch
from orderone.planning.roles.experts import ExpertPart, expert_parts, same_names
from orderone.planning.routing import Routing, RoutingChange, routing_of
from orderone.planning.traced_pair import NoExampleBatch, NoInstances, Pair, instances_to_trace


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
    # the part of them by which layers multiply their own product, by tensor
    inner_powers: Mapping[str, float] = field(default_factory=dict)
    # and the part by which code multiplies what they read
    front_powers: Mapping[str, float] = field(default_factory=dict)
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
    scored: frozenset[str] = frozenset()  # tensors that make queries or keys of attention
    outputs: tuple[str, ...] = ()
    parallel: frozenset[str] = frozenset()  # lists of modules that are not layers: heads, experts
    # mixtures of experts in base and target, by the name that their blocks share
    routing: Mapping[str, RoutingChange] = field(default_factory=dict)
    normalized: frozenset[str] = frozenset()  # matrices whose output a norm divides by its size
    data_readers: frozenset[str] = frozenset()  # matrices that read the inputs of the model
    # parameters of a hypernetwork -> the part of their growth (in logarithms) that is the fan-in of
    # the matrix that they write
    generated: Mapping[str, float] = field(default_factory=dict)
    # matrices, convolutions and tables that the model's outputs are linear in
    at_output: frozenset[str] = frozenset()
    # those among them that no other one reads
    readouts: frozenset[str] = frozenset()
    # those from which outputs are computed without another one, also by nonlinear functions
    last_makers: frozenset[str] = frozenset()
    # those among the last makers that no other matrix, convolution or table reads
    output_makers: frozenset[str] = frozenset()
    # uses (name and kind) by code that does not call the module of the tensor: no hook reaches them
    outside: frozenset[tuple[str, str]] = frozenset()
    # sizes that products of two activations are summed over, in the small and the large instance
    summed_products: frozenset[tuple[int, int]] = frozenset()
    terms: tuple[ScaledTerm, ...] = ()  # terms of sums that a power of the width multiplies
    findings: tuple[str, ...] = ()
    pair: Pair | None = None
    needs_inputs: bool = False  # not traced, and an example batch of the user would change that

    def traced_as(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """Return, for every tensor of a model, the corresponding tensor of the traced instance."""
        if self.shapes:
            return counterpart_names(shapes, self.shapes)
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

    def in_scores(self, traced_as: Mapping[str, str]) -> set[str]:
        """Return the tensors that make queries or keys of attention, by name in the model."""
        return {name for name, traced in traced_as.items() if traced in self.scored}

    def reads_data(self, traced: str) -> bool | None:
        """Return whether a matrix reads the inputs of the model; None if that is unknown."""
        kinds = {layout.kind for layout in self.layouts.get(traced, ())}
        if "matrix" not in kinds:
            return None
        return traced in self.data_readers

    def makes_output(self, traced: str) -> bool | None:
        """Return whether a matrix makes an output of the model, and is in no residual branch.

        None if that is unknown. The last branch of a model without a readout makes the output, too.
        """
        if traced not in self.layouts:
            return None
        return traced in self.output_makers and self.branch(traced) is None

    def is_outside(self, traced: str, kind: str) -> bool:
        """Return whether code uses a tensor in this way without calling its module."""
        kinds = (kind, "convolution") if kind == "matrix" else (kind,)
        return any((traced, kind) in self.outside for kind in kinds)

    def power(self, name: str, kind: str) -> float:
        """Return the power of the width that multiplies a use of a tensor."""
        return self.powers.get((name, kind), 0.0)

    def constant_at(self, name: str, kind: str, shape: tuple[int, ...]) -> float:
        """Return the constant that multiplies a use of a tensor, in a model where it has `shape`.

        The constant goes like a power of the width, the largest axis that grows.
        """
        value = self.constants.get((name, kind), 1.0)
        return value * self._to_power(self.power(name, kind), name, shape)

    def inner_growth(self, name: str, shape: tuple[int, ...]) -> float:
        """Return the number by which a layer multiplies its own product, over the small one."""
        return self._to_power(self.inner_powers.get(name, 0.0), name, shape)

    def _to_power(self, power: float, name: str, shape: tuple[int, ...]) -> float:
        """Return a power of the growth of a tensor's first axis that grows, to this shape."""
        if not power:
            return 1.0
        for size, small, large in zip(
            shape, self.small_shapes[name], self.shapes[name], strict=True
        ):
            if small != large:
                return (size / small) ** power
        return 1.0

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
    return ForwardFacts(note, scores=declared_scores(model, base), outputs=output_modules(model))


def collect(model: nn.Module, base: Base, inputs: ExampleBatch | None) -> ForwardFacts:
    """Trace the model if possible; otherwise `note` says why not."""
    try:
        pair = instances_to_trace(model, base, inputs)
    except NoInstances as reason:
        note = with_code(f"probe: not run: {reason}", "probe-not-run")
        facts = _without_trace(note, model, base)
        return replace(facts, needs_inputs=isinstance(reason, NoExampleBatch))
    try:
        small, large = _traces(pair)
    except Exception as error:  # the user's forward code may raise anything
        failure = f"probe: not run: the forward pass failed ({type(error).__name__}: {error})"
        return _without_trace(with_code(failure, "probe-not-run"), model, base)
    shapes = shapes_of(pair.large)
    renamed = [name for name in large.uses if name not in shapes]
    if renamed:
        raise InputError(
            f"model: its forward pass removes or renames {renamed[0]}, so that no plan fits it; run"
            " one forward pass of model and base before, or build them in their final form",
            "tensors-changed",
            argument="model",
        )
    facts = _compare(small, large, pair, output_modules(model))
    if large.scores:
        facts = replace(facts, score_sizes=score_sizes(small, large, pair, base))
    return replace(facts, routing=_routing(model, base, pair, facts))


def _traces(pair: Pair) -> tuple[Trace, Trace]:
    """Trace both instances; with gradients if their forward pass computes derivatives."""
    try:
        return pair.traces()
    except Exception:  # the user's forward code may raise anything
        args, kwargs = call_with(pair.inputs)
        with undisturbed(pair.small):
            if not needs_gradients(pair.small, lambda: pair.small(*args, **kwargs)):
                raise
        return pair.traces()


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
    fan_in: dict[str, float] = {}
    parts = _experts_of(model, facts)
    for name in parts:
        for layout in facts.layouts.get(traced_as[name], ()):
            if layout.kind == "matrix":
                terms = prod(shapes[name][axis] for axis in layout.fan_in)
                fan_in[name] = terms * facts.inner_growth(traced_as[name], shapes[name])
    return routing_of(model, inputs, parts, fan_in)


def _experts_of(model: nn.Module, facts: ForwardFacts) -> dict[str, ExpertPart]:
    """Return the experts and routers of a model by itself."""
    items = inventory(model)
    shapes = {name: item.shape for name, item in items.items()}
    declared = [name for name, item in items.items() if any(place.layout for place in item.places)]
    traced_as = facts.traced_as(shapes)
    return expert_parts(
        shapes,
        shapes,
        same_names(shapes),
        declared,
        facts.parallel,
        facts.summed_axes(traced_as),
        facts.in_scores(traced_as),
    )


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
    shapes = shapes_of(pair.large)
    small_shapes = shapes_of(pair.small)
    same = counterpart_names(shapes, small_shapes)
    carriers: dict[str, tuple[str, ...]] = {}
    for name, norm in large.carriers.items():
        if _is_in_the_target(norm, pair):
            carriers[name] = norm
    layouts: dict[str, tuple[Layout, ...]] = {}
    for name, uses in large.uses.items():
        layouts[name] = _layouts(uses, len(shapes[name]))
    facts = ForwardFacts(
        note=pair.note,
        shapes=shapes,
        layouts=layouts,
        small_shapes={name: small_shapes[other] for name, other in same.items()},
        branches=_branches(large),
        open_branches=any(not branch.last for branch in large.branches),
        carriers=carriers,
        outputs=outputs,
        parallel=frozenset(stack_of(name) for name in large.parallel),
        normalized=large.normalized,
        data_readers=large.data_readers,
        scored=_scored(large),
        generated=_generated(small, large, same),
        at_output=large.at_output,
        readouts=large.readouts,
        last_makers=large.last_makers,
        output_makers=large.output_makers,
        outside=large.outside,
        summed_products=_summed_products(small, large),
        terms=scaled_terms(small, large, pair),
        pair=pair,
    )
    findings: list[str] = []
    if large.scores:
        scores = traced_scores(small, large, same, pair, findings)
        facts = replace(facts, scores=scores)
    if small.constants or large.constants:
        facts = _with_constants(facts, small, large, same, findings)
    if _has_adapters(pair):
        facts = replace(facts, constant_growth=constant_growth(small, large, same))
    return replace(facts, findings=tuple(dict.fromkeys(findings)))


def _with_constants(
    facts: ForwardFacts, small: Trace, large: Trace, same: Mapping[str, str], findings: list[str]
) -> ForwardFacts:
    """Add the constants of the forward code, except those of attention scores.

    A constant that multiplies queries or keys, with their biases, is a part of the scores' scale.
    """
    assert facts.pair is not None
    biases = scaled_biases(large)
    in_scores = facts.scored | {bias for bias, maker in biases.items() if maker in facts.scored}
    return replace(
        facts,
        powers=powers_by_use(small, large, same, facts.pair, in_scores, findings),
        biases=biases,
        inner_powers=powers_in_layers(small, large, same, facts.pair),
        front_powers=powers_before_layers(small, large, same, facts.pair),
        constants=constants_of_base(small, large, same),
    )


def _scored(trace: Trace) -> frozenset[str]:
    scored: set[str] = set()
    for score in trace.scores:
        scored.update(score.queries, score.keys)
    return frozenset(scored)


def _has_adapters(pair: Pair) -> bool:
    """Return whether the traced models are base and target, partly frozen."""
    trained = {parameter.requires_grad for parameter in pair.large.parameters()}
    return not pair.owned and len(trained) == 2


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


def _summed_products(small: Trace, large: Trace) -> frozenset[tuple[int, int]]:
    """Return the sizes that products of activations are summed over; none if they do not match."""
    if len(small.summed) != len(large.summed):
        return frozenset()
    return frozenset(zip(small.summed, large.summed, strict=True))


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
