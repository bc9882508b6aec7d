"""Initial sizes that depend on the depth of the model: GPT-2 divides the last matrix of every
residual branch by sqrt(2 L).

Without a rule for depth (`depth=None`) this dependence of the model's own code stays. The rule for
the width replaces the model's dependence on width. The initial size of a tensor in a deeper model
is therefore

    size in the base * own factor * factor of the rule
    own factor = size at the depth of the target / size at the depth of the base, at equal width

The own factor of a Hugging Face model is measured on an instance with the depth of the target and
the widths of the base. Any other model is known at two sizes only, which differ in width as well:

    R = size in the target / size in the base = W D,    D: own factor

    R = 1                                     D = 1
    nothing in the module grows with width    D = R
    torch's code draws both sizes             D = 1; this code knows shapes only
    otherwise                                 W is one of the laws of `WIDTH_LAWS`, the one that
                                              explains the other matrices of the model; D = R / W

If the laws do not decide, the plan is refused. A base with the depth of the target always decides.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from orderone.core.errors import InputError, with_code
from orderone.observe.inventory import inventory
from orderone.planning import huggingface
from orderone.planning.adjustments import Adjusted, Draft, Drafts
from orderone.planning.apply import mark_of
from orderone.planning.base import Base, built, from_module, is_configuration
from orderone.planning.counterparts import stack_of
from orderone.planning.initial import Initial, measure, pooled
from orderone.planning.initial_sizes import agree, drawn_by_code, drawn_by_torch
from orderone.rules.axes import Growth

# powers of the depth that initializers use
DEPTH_POWERS = (0.5, 1.0)
# factor of the initial size, for growth of fan-in, of fan-out and of their sum
WIDTH_LAWS: dict[str, Callable[[float, float, float], float]] = {
    "constant": lambda fan_in, fan_out, total: 1.0,
    "fan-in": lambda fan_in, fan_out, total: fan_in**-0.5,
    "fan-out": lambda fan_in, fan_out, total: fan_out**-0.5,
    "xavier": lambda fan_in, fan_out, total: total**-0.5,
    "1/fan-in": lambda fan_in, fan_out, total: 1 / fan_in,
}


def keep(drafts: Drafts, model: nn.Module, base: Base) -> Adjusted:
    """Give every tensor of a deeper model its own factor, and say which are not 1."""
    depths = [draft.depth for draft in drafts.values()]
    times = max(depths, key=lambda depth: abs(math.log(depth)))
    note = (
        f"the model is {times:.3g} times as deep as its base, and no rule scales with depth"
        " (depth=None)"
    )
    factors = _own_factors(drafts, model, base)
    result = dict(drafts)
    factors_by_stack: dict[str, list[float]] = {}
    for name, factor in factors.items():
        if factor == 1:
            continue
        reason = f"factor of the model's initialization at this depth: x{factor:.4g}"
        result[name] = replace(drafts[name], own_depth=factor).because(reason)
        factors_by_stack.setdefault(stack_of(name), []).append(factor)
    notes = [with_code(note, "depth-not-scaled")]
    if factors_by_stack:
        stacks = [f"{stack} {_range(values)}" for stack, values in factors_by_stack.items()]
        message = (
            "the model's code lets initial sizes depend on the depth, and the plan does the same:"
            f" {', '.join(stacks)}"
        )
        notes.append(with_code(message, "own-depth-kept"))
    return Adjusted(result, notes=tuple(notes))


def _range(values: Iterable[float]) -> str:
    low, *_, high = sorted([*values, *values])
    if high - low < 1e-3 * high:
        return f"x{low:.4g}"
    return f"x{low:.4g} to x{high:.4g}"


def _own_factors(drafts: Drafts, model: nn.Module, base: Base) -> dict[str, float]:
    deeper: dict[str, Draft] = {}
    for name, draft in drafts.items():
        # a start replaces the initial sizes of the model's own code
        if draft.depth != 1 and draft.trained and draft.draw is None:
            deeper[name] = draft
    if base.own_depths:
        return {name: base.own_depths[name] for name in deeper}
    sizes = _at_the_width_of_the_base(deeper, model, base)
    if sizes is None:
        return _Separation(drafts, model, base).factors()
    factors: dict[str, float] = {}
    for name, draft in deeper.items():
        factors[name] = _factor(sizes[name], draft, 1.0)
    return factors


def _factor(size: Initial, draft: Draft, width: float) -> float:
    """Return the own factor, exact if it is 1 or a power of the depth up to sampling errors."""
    if not size.rms or not draft.base.rms:
        return 1.0
    factor = size.rms / draft.base.rms / width
    error = _error(size, draft)
    for power in (0.0, *DEPTH_POWERS):
        exact = draft.depth**-power
        if abs(math.log(factor / exact)) <= error:
            return exact
    return factor


def _error(size: Initial, draft: Draft) -> float:
    """Return the largest error of the logarithm of a measured ratio."""
    if size.constant is not None and draft.base.constant is not None:
        return 1e-6
    entries = math.prod(draft.evidence.item.shape)
    base_entries = math.prod(draft.evidence.base_shape)
    return min(0.01 + 3 / math.sqrt(2 * entries) + 3 / math.sqrt(2 * base_entries), 0.3)


# --- Hugging Face models --------------------------------------------------------------------------


def _at_the_width_of_the_base(
    deeper: Drafts, model: nn.Module, base: Base
) -> Mapping[str, Initial] | None:
    """Return initial sizes at the depth of the target and the width of the base.

    The result is None if no such model can be built, or if its code is not what initialized the
    base.
    """
    ours = getattr(model, "config", None)
    theirs = getattr(base.module, "config", None)
    if base.module is None or not is_configuration(ours) or not is_configuration(theirs):
        return None
    try:
        config = huggingface.with_widths_of(ours, theirs)
        deep = from_module(built(model, config, device="meta"))
        again = from_module(built(base.module, theirs, device="meta"))
    except InputError:
        return None
    for name, draft in deeper.items():
        if deep.shapes.get(name) != draft.evidence.base_shape:
            return None
    for name, size in base.initial.items():
        if not agree(size, again.initial[name], math.prod(base.shapes[name])):
            return None
    return deep.initial


# --- any other model ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Separation:
    """Separates the dependence on depth from that on width, given two sizes of a model."""

    drafts: Drafts
    model: nn.Module
    base: Base

    def factors(self) -> dict[str, float]:
        factors: dict[str, float] = {}
        for name, draft in self.drafts.items():
            if draft.depth != 1 and draft.trained and draft.draw is None:
                factors[name] = self._own_factor(draft)
        return factors

    def _own_factor(self, draft: Draft) -> float:
        size = self._sizes.get(draft.name)
        if size is None:
            raise _unknown(draft, "its initial size at the depth of the model is unknown")
        if not size.rms or not draft.base.rms or self._ratio_is(1.0, draft):
            return 1.0
        if not self._grows_with_width(draft):
            return _factor(size, draft, 1.0)
        if self._torch_draws(draft):
            return 1.0
        widths = self._candidates(draft)
        if len(widths) != 1:
            ratio = size.rms / draft.base.rms
            raise _unknown(
                draft,
                f"its own initial size changes by x{ratio:.4g} from the base to the model, and"
                " width and depth both grow",
            )
        return _factor(size, draft, widths[0])

    def _candidates(self, draft: Draft) -> list[float]:
        """Return the different factors of the width that the laws of this model allow."""
        if draft.evidence.only_matrix is None:
            growth = max(float(draft.resolved.growth.fan_out), 1.0)
            laws = [1.0, growth**-0.5, 1 / growth]
            if draft.base.constant is not None and not self._ratio_is_one_of(laws, draft):
                return [1.0]  # constants do not depend on a width by accident
        else:
            laws = [_width_factor(law, draft) for law in self._laws]
        error = _error(self._sizes[draft.name], draft)
        different: list[float] = []
        for law in laws:
            if all(abs(math.log(law / other)) > error for other in different):
                different.append(law)
        return different

    @cached_property
    def _laws(self) -> tuple[str, ...]:
        """Laws of the width that explain all matrices whose size does not depend on depth."""
        stacks: dict[str, set[str]] = {}
        for name, draft in self.drafts.items():
            laws = stacks.setdefault(stack_of(name), set(WIDTH_LAWS))
            laws &= self._explained_by(draft)
        common = set(WIDTH_LAWS)
        for laws in stacks.values():
            if laws:  # one law for all layers
                common &= laws
        return tuple(law for law in WIDTH_LAWS if law in common)

    def _explained_by(self, draft: Draft) -> set[str]:
        """Return the laws of the width that explain a matrix without any dependence on depth.

        The set is empty if a dependence on depth explains the matrix as well.
        """
        size = self._sizes.get(draft.name)
        known = size is not None and size.rms > 0 and draft.base.rms > 0 and draft.trained
        known = known and draft.draw is None
        is_matrix = draft.evidence.only_matrix is not None and draft.base.constant is None
        if not known or not is_matrix or self._torch_draws(draft):
            return set()
        result: set[str] = set()
        for law in WIDTH_LAWS:
            width = _width_factor(law, draft)
            if self._ratio_is(width, draft):
                result.add(law)
            if draft.depth == 1:
                continue
            for power in DEPTH_POWERS:
                if self._ratio_is(width * draft.depth**-power, draft):
                    return set()
        if len(result) == len(WIDTH_LAWS):
            return set()  # nothing grows
        return result

    def _ratio_is(self, value: float, draft: Draft) -> bool:
        size = self._sizes[draft.name]
        return abs(math.log(size.rms / draft.base.rms / value)) <= _error(size, draft)

    def _ratio_is_one_of(self, values: Iterable[float], draft: Draft) -> bool:
        return any(self._ratio_is(value, draft) for value in values)

    def _grows_with_width(self, draft: Draft) -> bool:
        """Return whether a tensor of the module that holds this one grows."""
        return not self._growing_modules.isdisjoint(draft.evidence.item.modules)

    @cached_property
    def _growing_modules(self) -> set[str]:
        """Modules that hold a tensor which grows."""
        modules: set[str] = set()
        for draft in self.drafts.values():
            if draft.evidence.item.shape != draft.evidence.base_shape:
                modules.update(draft.evidence.item.modules)
        return modules

    def _torch_draws(self, draft: Draft) -> bool:
        """Return whether target and base have the sizes that modules of torch draw."""
        ours = self._drawn_by_torch.get(draft.name)
        theirs = self._base_drawn_by_torch.get(draft.base_name)
        if ours is None or theirs is None:
            return False
        evidence = draft.evidence
        return agree(self._sizes[draft.name], ours, math.prod(evidence.item.shape)) and agree(
            draft.base, theirs, math.prod(evidence.base_shape)
        )

    @cached_property
    def _drawn_by_torch(self) -> dict[str, Initial]:
        return drawn_by_torch(self.model)

    @cached_property
    def _base_drawn_by_torch(self) -> Mapping[str, Initial]:
        if self.base.module is None:
            return self.base.initial  # a saved plan: only the target can be compared with torch
        return drawn_by_torch(self.base.module)

    @cached_property
    def _sizes(self) -> dict[str, Initial]:
        """Initial sizes of the target by its own code, as far as they are known."""
        sizes: dict[str, Initial] = {}
        if mark_of(self.model) is not None:
            return sizes  # a plan has changed them
        items = inventory(self.model)
        missing = {name: item for name, item in items.items() if item.tensor.is_meta}
        for name, item in items.items():
            if name not in missing:
                sizes[name] = measure(item.tensor)
        if missing:
            drawn = drawn_by_code(self.model, missing)
            sizes |= {name: drawn[name] for name in self._code_is_known(missing) if name in drawn}
        return pooled(sizes, {name: item.tensor.numel() for name, item in items.items()})

    def _code_is_known(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the tensors whose counterpart in the base has the size that its code draws."""
        module = self.base.module
        if module is None:
            return
        items = inventory(module)
        drawn = drawn_by_code(module, items)
        for name in names:
            draft = self.drafts[name]
            theirs = drawn.get(draft.base_name)
            entries = math.prod(draft.evidence.base_shape)
            if theirs is not None and agree(draft.base, theirs, entries):
                yield name


def _width_factor(law: str, draft: Draft) -> float:
    layout = draft.evidence.only_matrix
    assert layout is not None
    fans = _fan_growth(draft, layout.fan_in, layout.fan_out)
    evidence = draft.evidence
    total = sum(evidence.product(axes) for axes in (layout.fan_in, layout.fan_out))
    base_total = evidence.product(layout.fan_in) / fans.fan_in
    base_total += evidence.product(layout.fan_out) / fans.fan_out
    return WIDTH_LAWS[law](float(fans.fan_in), float(fans.fan_out), total / base_total)


def _fan_growth(draft: Draft, fan_in: Iterable[int], fan_out: Iterable[int]) -> Growth:
    ratios: list[float] = []
    for axes in (fan_in, fan_out):
        ratios.append(math.prod(size / base for base, size in draft.evidence.over(axes)))
    return Growth(*ratios)


def _unknown(draft: Draft, why: str) -> InputError:
    message = (
        f"depth: {draft.name}: {why}, so that its dependence on depth, which depth=None keeps, is"
        " not known. Pass a base with the depth of the model and the width that you tuned:"
        " base=build(width of the base, depth of the model); or choose a rule: depth='sqrt' or"
        " 'completep'"
    )
    return InputError(message, "own-depth-unknown", argument="depth")
