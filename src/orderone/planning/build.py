"""`plan`: from a model and what it is compared with to one row for every tensor."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Annotated, TypeAlias

from torch import nn

from orderone.core.inputs import Exact, Name, Number, UserInput
from orderone.observe.inventory import inventory, shapes_of, unwrap
from orderone.planning import absolute, apply, constants, forward_facts, init_check, relative
from orderone.planning import base as bases
from orderone.planning.base import Base
from orderone.planning.constant_overrides import OrderOne
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.options import (
    EpsOption,
    ExampleBatch,
    LearningRate,
    Model,
    OptimizerKind,
    OrderOneConstants,
    Overrides,
    Patterns,
    PlanOptions,
    Request,
    Rule,
)
from orderone.planning.plan import Plan

BaseInput: TypeAlias = Annotated[
    nn.Module | Mapping[str, object] | Plan | str | PathLike[str] | None, UserInput
]


def plan(
    model: Model,
    base: BaseInput = None,
    rule: Rule = "mup",
    optimizer: OptimizerKind = "adamw",
    lr: LearningRate | None = None,
    weight_decay: Number | None = None,
    depth: Name | None = None,
    *,
    eps: EpsOption | None = None,
    gauge: Name = "folded",
    decay: Name = "independent",
    no_decay: Patterns | None = (),
    overrides: Overrides | None = None,
    inputs: ExampleBatch | None = None,
    probe: bool = True,
    score_power: Exact | None = None,
    C: OrderOneConstants | None = None,
    Lambda: OrderOneConstants | None = None,
) -> Plan:
    """What `rule` asks of every tensor of `model`, relative to `base`. Nothing is changed before
    `.apply()`.

    Args:
        model: Any nn.Module, on any device: the meta device needs no memory.
        base: What was tuned: a smaller module of the same architecture (the meta device is fine);
            for a Hugging Face model, overrides of its configuration such as {"hidden_size": 256}; a
            saved plan, or its path. None: absolute power laws.
        rule: A name of `rules.names()`, or a rule of `rules.custom`.
        optimizer: sgd, adam, adamw, adafactor, muon (with adamw for what is not a hidden matrix),
            lion, rmsprop, nadam or adagrad; or the class of one of them, or a subclass of yours,
            which `plan.optimizer()` then constructs.
        lr, weight_decay, eps: As tuned on the base; by default those of torch.optim. For muon, lr
            may be {"muon": ..., "adamw": ...}.
        depth: "sqrt" (residual branches times 1/sqrt(L)) or "completep" (1/L); None: nothing scales
            with depth.
        gauge: "folded" leaves the forward pass alone; "unit" and "paper" put multipliers into
            hooks.
        decay: "independent" keeps lr * weight_decay, "proportional" keeps weight_decay.
        no_decay: Patterns of tensors without weight decay, such as ("*.bias", "*norm*").
        overrides: {"pattern": role} for tensors whose role cannot be told, or that you know better.
        inputs: An example batch (tensor, tuple, or dict of keyword arguments), to look at the
            forward pass of a model that is not Hugging Face's.
        probe: False: do not look at the forward pass.
        score_power: The power of the head size that attention scores are divided by; by default 1
            for mup, 1/2 for sp.
        C, Lambda: In absolute mode, order-one constants of initial variance and learning rate, by
            role, group of S2, or matrix of attention: {"PE": 0.02**2, "Q": 0.5}.
    """
    options = PlanOptions(
        rule=rule,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        depth=depth,
        eps=eps,
        gauge=gauge,
        decay=decay,
        no_decay=no_decay,
        overrides=overrides,
        inputs=inputs,
        probe=probe,
        score_power=score_power,
        C=C,
        Lambda=Lambda,
    )
    request = options.read(model)
    if base is None:
        order_one = OrderOne(C or {}, Lambda or {})
        return absolute.absolute_plan(
            model, request, order_one, constants.look(model, inputs, probe)
        )
    if C or Lambda:
        raise ValueError(
            "C and Lambda belong to absolute mode (base=None); relative to a base, its own sizes"
            " take their place"
        )
    if isinstance(base, (str, PathLike)):
        base = _saved(base)
    compared = _read_base(model, base)
    facts = _forward_facts(model, compared, options)
    made = relative.relative_plan(unwrap(model), compared, request, facts)
    if facts.pair is not None and init_check.can_observe(facts.pair):
        made = _with_init_check(made, request, facts)
    if isinstance(base, Plan) and base.applied:
        return _continue_applied(made, base)
    return made


def _forward_facts(model: nn.Module, base: Base, options: PlanOptions) -> ForwardFacts:
    if options.probe:
        return forward_facts.look(model, base, options.inputs)
    return forward_facts.skipped(model, base)


@dataclass(frozen=True)
class Family:
    """Plans for models of many sizes: one request, one base, and one look at the forward pass where
    that is enough for all sizes."""

    request: Request
    base: Base
    seen: ForwardFacts
    options: PlanOptions

    def plan(self, model: nn.Module) -> Plan:
        """Return the plan for one of the models."""
        facts = self.seen
        if shapes_of(model) == self.base.shapes:
            facts = replace(facts, scores=())  # nothing grows
        elif self.options.probe and facts.scores:
            # head sizes grow, in each size by another factor
            facts = forward_facts.look(model, self.base, self.options.inputs)
        return relative.relative_plan(unwrap(model), self.base, self.request, facts)


def family(model: nn.Module, base: nn.Module, **keywords: object) -> Family:
    """Return a maker of `plan(model, base=base, ...)` for many models of one architecture, of which
    `model` should be the largest."""
    options = PlanOptions.from_keywords(keywords)
    compared = _read_base(model, base)
    facts = _forward_facts(model, compared, options)
    return Family(options.read(model), compared, facts, options)


def _continue_applied(made: Plan, before: Plan) -> Plan:
    """Continue an applied plan for this very model, read back: what was applied stays applied."""
    if len(made.rows) != len(before.rows):
        return made
    rows = list(zip(made.rows, before.rows, strict=True))
    if any(row.shape != row_before.shape for row, row_before in rows):
        return made
    if any(row.init_std != row_before.init_std for row, row_before in rows):
        raise ValueError(
            "base: the saved plan was applied to a model of this size as"
            f" {before.headline.split(':')[0]}, {before.settings.gauge} gauge,"
            f" depth={before.settings.depth}; its weights do not fit another plan"
        )
    continued = replace(made, was_applied=True)
    apply.install(continued, continued.bound())
    return continued


def _with_init_check(made: Plan, request: Request, facts: ForwardFacts) -> Plan:
    """Apply the same request to the two small instances, and add to the plan whether sizes at
    initialization grow as it implies."""
    assert facts.pair is not None
    small = facts.pair.small
    try:
        large = init_check.writable(facts.pair)
        small_request = replace(request, depth=None, overrides=_matching_overrides(request, large))
        proof = relative.relative_plan(large, bases.from_module(small), small_request, facts)
        proof.apply()
        observations = init_check.observe(proof, small, large, facts.pair)
    except Exception as error:  # the user's forward code may raise anything
        failure = f"sizes were not compared ({type(error).__name__}: {error})"
        return replace(made, looked=f"{facts.note}: {failure}")
    looked, unexpected = init_check.summary(facts.note, observations, facts.pair.growth)
    notes = (*made.notes, *unexpected)
    return replace(made, observations=observations, looked=looked, notes=notes)


def _matching_overrides(request: Request, model: nn.Module) -> dict[str, str]:
    """A smaller instance has fewer layers, and not every pattern finds something in it."""
    names = list(inventory(model))
    overrides: dict[str, str] = {}
    for pattern, role in request.overrides.items():
        if fnmatch.filter(names, pattern):
            overrides[pattern] = role
    return overrides


def _saved(path: str | PathLike[str]) -> Plan:
    try:
        return Plan.load(path)
    except OSError as error:
        raise ValueError(
            f"base: {path} cannot be read ({error.strerror}); expected a plan written by plan.save"
        ) from error


def _read_base(model: nn.Module, base: BaseInput) -> Base:
    if isinstance(base, nn.Module):
        return bases.from_module(base, model)
    if bases.is_configuration(base):
        return bases.from_module(bases.built(model, base, device="meta"), model)
    if isinstance(base, Mapping):
        return bases.from_overrides(model, base)
    if isinstance(base, Plan):
        return bases.from_plan(base, model)
    raise ValueError(
        "base: expected a module, a mapping of overrides, a plan or its path, or None; got"
        f" {type(base).__name__}"
    )
