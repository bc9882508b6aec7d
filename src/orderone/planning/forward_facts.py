"""What a forward pass shows beyond shapes and owning modules.

Two small instances of the model, one four times as wide, run once under `trace`. What differs
between them is what the forward code does with the width: Gemma multiplies embeddings by sqrt(n),
T5 its tied head by n^-1/2, attention divides by a root of the head size. A constant that grows like
a power of the width is compensated; what is no constant is reported. The look also tells how
tensors of unknown modules are used, which tensors form residual branches, and which norm stands
before a readout.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from orderone.observe.inventory import shapes_of, unwrap
from orderone.observe.layouts import VECTOR, Layout
from orderone.observe.trace import Constant, Scores, Trace, Use, trace
from orderone.planning import huggingface
from orderone.planning.base import Base, built, is_configuration
from orderone.planning.counterparts import counterparts, stack_of
from orderone.torch_compat import tree_map

NEGLIGIBLE = 0.01  # an exponent smaller than this is rounding


@dataclass(frozen=True)
class Pair:
    small: nn.Module
    large: nn.Module
    inputs: Any
    growth: float  # of the width, from small to large
    head_growth: (
        float | None
    )  # of the head size, from the base to the target; None: as seen, or not known
    told: str
    owned: bool  # made here, and free to be changed

    def traces(self) -> tuple[Trace, Trace]:
        return trace(self.small, self.inputs), trace(self.large, self.inputs)


class NoInstances(Exception):  # noqa: N818
    """Why there is nothing to look at."""


@dataclass(frozen=True)
class Score:
    """Attention scores: scale = head_size^power; `separate` if queries have tensors of their
    own."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    head_growth: float
    power: float
    separate: bool


@dataclass(frozen=True)
class ForwardFacts:
    """What was seen, under the names of the instance that was looked at: a small one stands for
    deeper ones."""

    told: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layouts: Mapping[str, tuple[Layout, ...]] = field(default_factory=dict)
    powers: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # of the width, per tensor and kind of use
    branches: Mapping[str, str] = field(default_factory=dict)  # "last" or "inside"
    open_branches: bool = False  # some branch ends in nothing that could be multiplied
    carriers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    outputs: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    pair: Pair | None = None

    def seen_as(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
        """For every tensor of a model, the tensor that was looked at in its place."""
        if self.shapes:
            return {name: c.name for name, c in counterparts(shapes, self.shapes).items()}
        return {}

    def power(self, name: str, kind: str) -> float:
        return self.powers.get((name, kind), 0.0)

    def branch(self, name: str) -> str | None:
        """A tensor beside others of a branch belongs to it: keys and values of cross-attention do
        not read the stream."""
        if name in self.branches:
            return self.branches[name]
        parent = name.rpartition(".")[0].rpartition(".")[0]
        inside_a_layer = "*" in stack_of(parent) and not stack_of(parent).endswith("*")
        beside = any(other.startswith(f"{parent}.") for other in self.branches)
        return "inside" if inside_a_layer and beside else None

    def require_branches(self) -> None:
        if not self.branches:
            raise ValueError(
                f"depth: the residual branches are not known ({self.told}); if it was looked at,"
                " there are none, and depth is to be left out; otherwise give an example batch:"
                " plan(..., inputs=...)"
            )
        if self.open_branches:
            raise ValueError(
                "depth: a residual branch ends in something without parameters (a norm without"
                " gain, a nonlinearity) that nothing can be folded into; leave depth out, or"
                " multiply the branch in the model"
            )


def skipped(model: nn.Module, base: Base) -> ForwardFacts:
    told = (
        "probe: skipped, as asked (probe=False): multipliers inside the forward code are not seen"
    )
    return _unseen(told, model, base)


def _unseen(told: str, model: nn.Module, base: Base) -> ForwardFacts:
    return ForwardFacts(told, scores=_declared_scores(model, base), outputs=output_modules(model))


def look(model: nn.Module, base: Base, inputs: Any) -> ForwardFacts:
    """Whatever the model and its base allow; what could not be looked at is told, and changes
    nothing."""
    try:
        looked_at = pair(model, base, inputs)
    except NoInstances as reason:
        return _unseen(f"probe: not run: {reason}", model, base)
    try:
        small, large = looked_at.traces()
    except Exception as error:  # the user's forward code may raise anything
        return _unseen(
            f"probe: not run: the forward pass failed ({type(error).__name__}: {error})",
            model,
            base,
        )
    return _compare(small, large, looked_at, output_modules(model))


def output_modules(model: nn.Module) -> tuple[str, ...]:
    """Hugging Face models name their output layer."""
    inner = unwrap(model)
    get = getattr(inner, "get_output_embeddings", None)
    try:
        found = get() if get else None
    except (NotImplementedError, AttributeError):
        found = None
    return tuple(
        name for name, module in inner.named_modules() if found is not None and module is found
    )


def _compare(small: Trace, large: Trace, looked_at: Pair, outputs: tuple[str, ...]) -> ForwardFacts:
    findings: list[str] = []
    shapes = shapes_of(looked_at.large)
    same = {name: c.name for name, c in counterparts(shapes, shapes_of(looked_at.small)).items()}
    scores = _scores(small, large, same, looked_at, findings)
    in_scores = {name for s in large.scores for name in (*s.queries, *s.keys)}
    return ForwardFacts(
        told=looked_at.told,
        shapes=shapes,
        layouts={name: _layouts(uses, len(shapes[name])) for name, uses in large.uses.items()},
        powers=_powers(small, large, same, looked_at, in_scores, findings),
        branches=_branches(large),
        open_branches=any(not branch.last for branch in large.branches),
        carriers={
            name: found for name, found in large.carriers.items() if _can_be_told(found, looked_at)
        },
        scores=scores,
        outputs=outputs,
        findings=tuple(dict.fromkeys(findings)),
        pair=looked_at,
    )


def _branches(seen: Trace) -> dict[str, str]:
    places: dict[str, str] = {}
    for branch in seen.branches:
        places = dict.fromkeys(branch.inside, "inside") | places
        places |= dict.fromkeys(branch.last, "last")
    return places


def _can_be_told(names: tuple[str, ...], looked_at: Pair) -> bool:
    """A norm of one layer stands for those of many layers, if the instance is a smaller one."""
    return not looked_at.owned or not any("*" in stack_of(name) for name in names)


def _layouts(uses: tuple[Use, ...], dimensions: int) -> tuple[Layout, ...]:
    """None for a use that does not show what is summed over. What is not used does nothing, like a
    bias of zero."""
    if not uses:
        return (VECTOR,)
    known = [use for use in uses if use.kind != "other" and (use.kind != "matrix" or use.fan_in)]
    return tuple(dict.fromkeys(_layout(use, dimensions) for use in known))


def _layout(use: Use, dimensions: int) -> Layout:
    if use.kind == "lookup":
        return Layout("lookup", (0,), tuple(range(1, dimensions)))
    if use.kind not in ("matrix", "convolution") or use.fan_in is None:
        return VECTOR
    into = use.fan_in[:1] if use.kind == "convolution" else use.fan_in
    return Layout(
        "matrix", into, tuple(axis for axis in range(dimensions) if axis not in use.fan_in)
    )


# --- constants ------------------------------------------------------------------------------------


def _powers(
    small: Trace,
    large: Trace,
    same: Mapping[str, str],
    looked_at: Pair,
    in_scores: set[str],
    findings: list[str],
) -> dict[tuple[str, str], float]:
    """The power of the width in the constants that stand at each use."""
    before = standing(small)
    result: dict[tuple[str, str], float] = {}
    for (name, kind), value in standing(large).items():
        at = (same[name], kind)
        if at not in before or name in in_scores:
            continue
        power = _power(before[at], value, looked_at.growth)
        if power is None:
            findings.append(
                f"a constant at {name} could not be read; if it depends on the width, nothing makes"
                " up for it"
            )
        elif abs(power) > NEGLIGIBLE:
            result[name, kind] = power
    return result


def standing(seen: Trace) -> dict[tuple[str, str], float | None]:
    """The product of all constants at one use of each tensor: its other uses, by an encoder and a
    decoder, are alike."""
    products: dict[tuple[str, str], dict[tuple[int, ...], float | None]] = {}
    for constant in seen.constants:
        for at in _whose(constant, seen):
            uses = products.setdefault(at, {})
            before = uses.get(constant.at, 1.0)
            if before is None or constant.value is None:
                uses[constant.at] = None
            else:
                uses[constant.at] = before * constant.value
    return {at: next(iter(uses.values())) for at, uses in products.items()}


def _whose(constant: Constant, seen: Trace) -> list[tuple[str, str]]:
    """The uses whose output a constant multiplies, or, behind a norm, those whose input it
    multiplies."""
    if "lookup" in constant.uses:
        return [
            (name, "lookup")
            for name in constant.after
            if any(use.kind == "lookup" for use in seen.uses[name])
        ]
    if "matrix" in constant.uses or "convolution" in constant.uses:
        kinds = ("matrix", "convolution")
        return [
            (name, "matrix")
            for name in constant.after
            if any(use.kind in kinds for use in seen.uses[name])
        ]
    return [(name, "matrix") for name in constant.before]


def _power(small: float | None, large: float | None, growth: float) -> float | None:
    if small is None or large is None or not (math.isfinite(small) and math.isfinite(large)):
        return None
    if small == large or growth == 1:
        return 0.0
    if small * large <= 0:
        return None
    return _rational(math.log(large / small) / math.log(growth))


def _rational(exponent: float) -> float:
    """Exponents of forward code are simple fractions; rounding is not."""
    near = round(exponent * 12) / 12
    return near if abs(near - exponent) < 1e-3 else exponent


# --- attention ------------------------------------------------------------------------------------


def _scores(
    small: Trace, large: Trace, same: Mapping[str, str], looked_at: Pair, findings: list[str]
) -> tuple[Score, ...]:
    before = {s.queries: s for s in small.scores}
    pairs = [(before.get(tuple(same[name] for name in s.queries)), s) for s in large.scores]
    found = [
        _score(one, other, large, looked_at, findings) for one, other in pairs if one is not None
    ]
    return tuple(score for score in found if score is not None)


def _score(
    one: Scores, other: Scores, large: Trace, looked_at: Pair, findings: list[str]
) -> Score | None:
    where = f"attention scores at {', '.join(map(stack_of, other.queries))}"
    grown = other.head_size / one.head_size
    if one.scale is None or other.scale is None:
        findings.append(f"the scale of {where} could not be read")
        return None
    if grown == 1 and abs(math.log(other.scale / one.scale)) > NEGLIGIBLE:
        findings.append(
            f"{where} are scaled by {one.scale:.4g} and, wider, by {other.scale:.4g} at the same"
            " head size: give the model a scale that depends on nothing but the head size"
        )
    growth = looked_at.head_growth if looked_at.owned else grown
    if growth is None:
        findings.append(
            f"{where}: head sizes grow, and by how much in the target is not known; they are left"
            " as they are"
        )
    if growth is None or growth == 1:
        return None
    power = _power(one.scale, other.scale, grown) or 0.0
    separate = not set(other.queries) & set(other.keys) and not _offset_gain(
        other.queries, looked_at
    )
    return Score(
        _with_biases(other.queries, large), _with_biases(other.keys, large), growth, power, separate
    )


def _with_biases(names: tuple[str, ...], seen: Trace) -> tuple[str, ...]:
    biases = [f"{name.removesuffix('.weight')}.bias" for name in names if name.endswith(".weight")]
    return tuple(dict.fromkeys(name for name in (*names, *biases) if name in seen.uses))


def _offset_gain(names: tuple[str, ...], looked_at: Pair) -> bool:
    """A gain stored as an offset from one starts at zero and cannot take a factor."""
    parameters = dict(looked_at.large.named_parameters())
    return any(parameters[name].dim() == 1 and not parameters[name].any() for name in names)


def _declared_scores(model: nn.Module, base: Base) -> tuple[Score, ...]:
    """Without a look, torch's own attention modules still say their head size."""
    theirs = {} if base.module is None else dict(base.module.named_modules())
    found: dict[str, Score] = {}
    for name, module in unwrap(model).named_modules():
        other = theirs.get(name)
        if isinstance(module, nn.MultiheadAttention) and isinstance(other, nn.MultiheadAttention):
            packed = (f"{name}.in_proj_weight",)
            if module.head_dim != other.head_dim:
                score = Score(
                    packed, packed, module.head_dim / other.head_dim, -0.5, separate=False
                )
                found.setdefault(stack_of(name), score)
    return tuple(found.values())


# --- two instances to run -------------------------------------------------------------------------


def pair(model: nn.Module, base: Base, inputs: Any) -> Pair:
    if base.module is None:
        raise NoInstances("the base is a saved plan, not a model")
    inner = unwrap(model)
    ours = getattr(inner, "config", None)
    theirs = getattr(base.module, "config", None)
    if is_configuration(ours) and is_configuration(theirs):
        return _small_ones(inner, ours, theirs, inputs)
    if inputs is None:
        raise NoInstances(
            "no example batch; give one (plan(..., inputs=...)) to see what the forward code"
            " multiplies with"
        )
    return _themselves(inner, base.module, inputs)


def _themselves(model: nn.Module, base: nn.Module, inputs: Any) -> Pair:
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
    growth = _usual_growth(base, model)
    return Pair(
        base, model, inputs, growth, None, "probe: base and target, on the batch given", owned=False
    )


def _usual_growth(base: nn.Module, model: nn.Module) -> float:
    shapes = dict(base.named_parameters())
    ratios = [
        new / old
        for name, p in model.named_parameters()
        if name in shapes and shapes[name].dim() == p.dim()
        for new, old in zip(p.shape, shapes[name].shape, strict=True)
        if new != old
    ]
    if ratios:
        return max(set(ratios), key=ratios.count)
    return 1.0


def _small_ones(model: nn.Module, ours: Any, theirs: Any, inputs: Any) -> Pair:
    try:
        configurations = huggingface.small_pair(model, ours, theirs)
        small, large = (built(model, config, device="cpu").float() for config in configurations)
        batches = list(huggingface.examples(small, configurations[0]))
    except Exception as error:  # configurations may refuse to be changed in ways of their own
        raise NoInstances(
            f"small instances could not be built ({type(error).__name__}: {error})"
        ) from error
    if inputs is not None:
        batches.append(tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, inputs))
    batch = _one_that_runs(
        small, [b for b in batches if b], lambda: _like_the_target(model, ours, theirs)
    )
    widths = dict.fromkeys(map(huggingface.width_of, configurations))
    if configurations[0].to_dict() != configurations[1].to_dict():
        growth = huggingface.GROWTH
    else:
        growth = 1.0
    told = f"probe: small instances of width {' and '.join(widths)}"
    return Pair(
        small, large, batch, growth, huggingface.head_growth(ours, theirs), told, owned=True
    )


def _like_the_target(model: nn.Module, ours: Any, theirs: Any) -> nn.Module:
    return built(model, huggingface.proportional_to(model, ours, theirs), device="cpu").float()


def _one_that_runs(
    small: nn.Module, batches: list[Any], like_the_target: Callable[[], nn.Module]
) -> Any:
    """If the base does not run and a small copy of the target does, the base is no model at all."""
    errors = [_failure(small, batch) for batch in batches]
    if None in errors:
        return batches[errors.index(None)]
    if not errors:
        raise NoInstances(
            "no example batch is known for this kind of model; give one: plan(..., inputs=...)"
        )
    told = f"{type(errors[0]).__name__}: {errors[0]}"
    copy = like_the_target()
    if any(_failure(copy, batch) is None for batch in batches):
        raise ValueError(
            f"base: a model of these sizes does not run ({told}); give everything that belongs"
            " together, such as num_attention_heads with num_key_value_heads, hidden_size with"
            " intermediate_size"
        )
    raise NoInstances(
        f"the forward pass failed ({told}); give an example batch that works: plan(..., inputs=...)"
    )


def _failure(model: nn.Module, inputs: Any) -> Exception | None:
    try:
        trace(model, inputs)
    except Exception as error:  # the model's forward code may raise anything
        return error
    return None
