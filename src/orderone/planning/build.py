"""`plan`: from a model and what it is compared with to one row for every tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from inspect import signature
from os import PathLike
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import one_of
from orderone.core.inputs import Name
from orderone.observe.inventory import inventory, read_patterns, shapes_of, unwrap
from orderone.optimizers.table import algorithm
from orderone.planning import absolute, apply, constants, relative
from orderone.planning import base as bases
from orderone.planning import forward_facts as sights
from orderone.planning import init_check as probes
from orderone.planning.base import Base
from orderone.planning.constant_overrides import OrderOne
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.plan import Plan
from orderone.planning.request import Request
from orderone.rules.factors import DECAY, DEPTH_RULES
from orderone.theory.exponents import GAUGES, Parameterization

if TYPE_CHECKING:
    GivenBase = nn.Module | Mapping[str, Any] | Plan | str | PathLike[str] | None
    GivenRule = str | Parameterization
    GivenModel = nn.Module
    GivenOptimizer = str | type[Optimizer]
else:
    GivenBase = GivenRule = GivenModel = GivenOptimizer = Any  # read below


def plan(
    model: GivenModel,
    base: GivenBase = None,
    rule: GivenRule = "mup",
    optimizer: GivenOptimizer = "adamw",
    lr: Any = None,
    weight_decay: Any = None,
    depth: Name | None = None,
    *,
    eps: Any = None,
    gauge: Name = "folded",
    decay: Name = "independent",
    no_decay: Any = (),
    overrides: Any = None,
    inputs: Any = None,
    probe: bool = True,
    score_power: Any = None,
    C: Mapping[str, float] | None = None,
    Lambda: Mapping[str, float] | None = None,
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
    request = _request(
        model,
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
        score_power=score_power,
    )
    if base is None:
        return absolute.plan(
            model, request, OrderOne(C or {}, Lambda or {}), constants.look(model, inputs, probe)
        )
    if C or Lambda:
        raise ValueError(
            "C and Lambda belong to absolute mode (base=None); relative to a base, its own sizes"
            " take their place"
        )
    if isinstance(base, (str, PathLike)):
        base = _saved(base)
    compared = _read_base(model, base)
    if probe:
        seen = sights.look(model, compared, inputs)
    else:
        seen = sights.skipped(model, compared)
    made = relative.plan(unwrap(model), compared, request, seen)
    if seen.pair is not None and probes.can_observe(seen.pair):
        _observe(made, request, seen)
    if isinstance(base, Plan) and base.applied:
        _go_on(made, base)
    return made


@dataclass(frozen=True)
class Family:
    """One request and one base for models of many sizes; the forward pass is looked at once if that
    tells it for all."""

    request: Request
    base: Base
    seen: ForwardFacts
    inputs: Any
    probe: bool

    def plan(self, model: nn.Module) -> Plan:
        seen = self.seen
        if shapes_of(model) == self.base.shapes:
            seen = replace(seen, scores=())  # nothing grows
        elif self.probe and seen.scores:  # head sizes grow, in each size by a factor of its own
            seen = sights.look(model, self.base, self.inputs)
        return relative.plan(unwrap(model), self.base, self.request, seen)


def family(
    model: nn.Module, base: nn.Module, *, inputs: Any = None, probe: bool = True, **asked: Any
) -> Family:
    """`plan(model, base=base, ...)` for many models of one architecture, of which `model` should be
    the largest."""
    compared = _read_base(model, base)
    if probe:
        seen = sights.look(model, compared, inputs)
    else:
        seen = sights.skipped(model, compared)
    return Family(_request(model, **asked), compared, seen, inputs, probe)


def _request(model: GivenModel, **asked: Any) -> Request:
    """What `plan` takes, with its defaults for what is not there."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: expected an nn.Module, got {type(model).__name__}")
    settings = {name: parameter.default for name, parameter in signature(plan).parameters.items()}
    for name in asked:
        one_of(name, settings, "setting of a plan")
    given = SimpleNamespace(**settings | asked)
    return Request(
        given.rule,
        algorithm(given.optimizer),
        given.lr,
        given.weight_decay,
        given.eps,
        _depth(given.depth),
        one_of(given.gauge, GAUGES, "gauge"),
        one_of(given.decay, DECAY, "decay"),
        read_patterns(given.no_decay, model, "no_decay"),
        _overrides(given.overrides),
        given.score_power,
    )


def _go_on(made: Plan, before: Plan) -> None:
    """An applied plan for this very model, read back: what was applied stays applied."""
    if [row.shape for row in made.rows] != [row.shape for row in before.rows]:
        return
    if [row.init_std for row in made.rows] != [row.init_std for row in before.rows]:
        raise ValueError(
            "base: the saved plan was applied to a model of this size as"
            f" {before.headline.split(':')[0]}, {before.settings.gauge} gauge,"
            f" depth={before.settings.depth}; its weights do not fit another plan"
        )
    made.applied = True
    apply.install(made, made.bound())


def _observe(made: Plan, request: Request, seen: ForwardFacts) -> None:
    """The same request for the two small instances, applied there: does it give what it
    promises?"""
    assert seen.pair is not None
    small = seen.pair.small
    try:
        large = probes.writable(seen.pair)
        proof = relative.plan(
            large,
            bases.from_module(small),
            replace(request, depth=None, overrides=_that_match(request, large)),
            seen,
        )
        proof.apply()
        made.observations = probes.observe(proof, small, large, seen.pair)
    except Exception as error:  # the user's forward code may raise anything
        made.looked = f"{seen.told}: sizes were not compared ({type(error).__name__}: {error})"
        return
    made.looked, unexpected = probes.summary(seen.told, made.observations, seen.pair.growth)
    made.notes = (*made.notes, *unexpected)


def _that_match(request: Request, model: nn.Module) -> dict[str, str]:
    """A smaller instance has fewer layers, and not every pattern finds something in it."""
    names = list(inventory(model))
    return {
        pattern: role
        for pattern, role in request.overrides.items()
        if any(fnmatch(n, pattern) for n in names)
    }


def _saved(path: str | PathLike[str]) -> Plan:
    try:
        return Plan.load(path)
    except OSError as error:
        raise ValueError(
            f"base: {path} cannot be read ({error.strerror}); expected a plan written by plan.save"
        ) from error


def _overrides(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f'overrides: expected {{"pattern": role}}, got {given!r}')
    return dict(given)


def _depth(given: Name | None) -> str | None:
    if given is None:
        return None
    return one_of(given, DEPTH_RULES, "depth")


def _read_base(model: nn.Module, base: GivenBase) -> Base:
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
