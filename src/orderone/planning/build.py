"""`plan`: from a model and its base to one row for every tensor."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Annotated, TypeAlias

from torch import nn

from orderone.core.errors import InputError, code_of, with_code
from orderone.core.inputs import Exact, Name, UserInput
from orderone.observe.batch_errors import naming_batch
from orderone.observe.derivatives import without_gradients
from orderone.observe.inventory import inventory, shapes_of, unwrap
from orderone.observe.trace import call_with, undisturbed
from orderone.planning import absolute, apply, constants, forward_facts, init_check, relative
from orderone.planning import base as bases
from orderone.planning.base import Base
from orderone.planning.constant_overrides import OrderOne
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.horizon import AxesInput, CriticalBatch, PairInput
from orderone.planning.options import (
    ExampleBatch,
    Model,
    OptimizerKind,
    OrderOneConstants,
    Overrides,
    Patterns,
    PlanOptions,
    Rule,
    pair_remedy,
)
from orderone.planning.plan import Plan
from orderone.planning.plan_row import Row
from orderone.planning.request import EpsOption, Request
from orderone.planning.settings import SettingInput
from orderone.planning.start_setting import InitInput
from orderone.theory.scaling import is_strategy

ABSOLUTE = "absolute"
BaseInput: TypeAlias = Annotated[
    nn.Module | Mapping[str, object] | Plan | str | PathLike[str] | None, UserInput
]


def plan(
    model: Model,
    base: BaseInput = None,
    rule: Rule = "mup",
    optimizer: OptimizerKind = "adamw",
    lr: SettingInput | None = None,
    weight_decay: SettingInput | None = None,
    depth: Name | None = None,
    *,
    eps: EpsOption | None = None,
    expert_rule: Name | None = "mup",
    rank_rule: Name | None = "mup",
    repetition_rule: Name | None = "mup",
    gauge: Name = "folded",
    decay: Name = "independent",
    batch: PairInput | None = None,
    tokens: PairInput | None = None,
    horizon: Name | None = "sde",
    critical_batch: CriticalBatch | None = None,
    axes: AxesInput | None = None,
    no_decay: Patterns | None = (),
    decay_vectors: bool = True,
    init_scale: SettingInput | None = None,
    init: InitInput | None = None,
    overrides: Overrides | None = None,
    inputs: ExampleBatch | None = None,
    probe: bool = True,
    score_power: Exact | None = None,
    C: OrderOneConstants | None = None,
    Lambda: OrderOneConstants | None = None,
) -> Plan:
    """Return the initial size, learning rate, weight decay and eps of every tensor of `model`.

    The values are those of `rule` relative to `base`. The model is not changed before `.apply()`.

    Args:
        model: Any nn.Module, on any device; the meta device needs no memory.
        base: The model that was tuned: a smaller module of the same architecture (the meta device
            is fine); for a Hugging Face model, overrides of its configuration such as
            {"hidden_size": 256}; a saved plan, or its path. "absolute" asks for power laws of the
            dimensions themselves; only the strategies of the effective theory of Transformers,
            which are such laws, may leave the base out.
        rule: A name of `rules.names()`, a rule of `rules.custom`, or `rules.compose(...)`.
        optimizer: sgd, adam, adamw, adafactor, muon (with adamw for all but hidden matrices), lion,
            rmsprop, nadam or adagrad; "muon:match_rms_adamw" is Muon with this convention of its
            rate (original, match_rms_adamw, spectral or none); or the class of one of them, or your
            subclass of one, which `plan.optimizer()` then constructs.
        lr: Learning rate that was tuned on the base. Without it, the plan takes the default of
            torch.optim, and has a note. A mapping sets it by tensor, such as {"default": 3e-3,
            "embedding": 1e-2, "*.q_proj.weight": 1e-3} or, for muon, {"muon": ..., "adamw": ...}.
            The key that counts for a tensor: its name > a pattern of names (the most specific) >
            its role (embedding, hidden, readout, vector) > its optimizer > "default".
        weight_decay: Weight decay that was tuned on the base, or a mapping as for lr. By default
            that of torch.optim.
        eps: eps that was used on the base, by default that of torch.optim. For muon, a number is
            the eps of Muon alone; {"muon": 1e-7, "adamw": 1e-12} sets both.
        depth: "sqrt" (residual branches times 1/sqrt(L)) or "completep" (1/L). None: no rule;
            initial sizes that the model's own code sets by its depth stay, as in GPT-2.
        expert_rule: Rule if the number of experts, or of active ones, differs from the base: "mup",
            "mssp" or "jiang" (see docs/axes.md). None: no scaling of experts and routers.
        rank_rule: Rule if the rank of adapters (LoRA) differs from the base: "mup" or "mua". None:
            no scaling.
        repetition_rule: Rule if the number of queries per key (grouped-query attention) differs
            from the base: "mup" or "gqa-mup". None: no scaling of keys and values.
        gauge: "folded" leaves the forward pass unchanged; "unit" and "paper" add multipliers as
            hooks.
        decay: How weight decay follows the size of the model. "independent" preserves lr *
            weight_decay, "proportional" preserves weight_decay. "timescale" preserves lr *
            weight_decay * tokens / batch. "sqrt" and "inverse-width" let lr * weight_decay fall
            with the width r, by r^-1/2 for hidden matrices and by 1/r for all tensors.
        batch: Batch sizes of base and target, such as (64, 512). Only their ratio changes
            settings. Count in tokens, not in sequences, if the printed timescale is to be in
            tokens.
        tokens: Training tokens of base and target, such as (2e8, 5e9). Only their ratio counts.
        horizon: Rule for batch and tokens. "sde": with kappa the ratio of batches over that of
            tokens, lr and weight decay * sqrt(kappa), eps / sqrt(kappa), (1 - beta) * kappa; for
            SGD lr * kappa. "power": lr * batch^(1/2) * tokens^-0.32. None: settings do not follow.
        critical_batch: Critical batch size, a number or the result of `noise_scale`. The plan has
            a note if the batch of the target is larger.
        axes: Base and target on further axes, {"name": (base, target)}: axes of the composed rule,
            or of installed packages.
        no_decay: Patterns of tensors without weight decay, such as ("*.bias", "*norm*").
        decay_vectors: Whether gains, biases and scalars decay. They do by default, as in
            torch.optim, so that at base size nothing changes; False is what nanoGPT and the Trainer
            of Hugging Face do.
        init_scale: Factor of the base's initial sizes: a number for all matrices and lookup tables,
            or a mapping with the keys of lr. Gains and biases change only if a key names them.
        init: Start of the base: "keep" (the values of the model's code), "fan-in", "xavier",
            "orthogonal", "zero-readout", "zero-residual", "completep", "neural-tangent", "hybrid"
            or "maximal-update"; or a mapping with the keys of lr, whose values may also be "zero"
            or a size: {"default": "fan-in", "embedding": 1.0, "readout": "zero"}. The rule scales
            these sizes to the model. `apply` then draws the values, from torch's random state. By
            default that of a saved plan, otherwise "keep".
        overrides: {"pattern": role} for tensors whose role is ambiguous or wrong.
        inputs: An example batch (tensor, tuple, or dict of keyword arguments). The forward pass of
            a model that is not from Hugging Face is traced only if you pass one.
        probe: Whether to trace the forward pass.
        score_power: The power of the head size that attention scores are divided by; by default 1
            for mup, 1/2 for sp.
        C: In absolute mode, constants of the initial variance, by role, by group of tensors (WE,
            PE, QKVU, W, X, head), or by matrix of attention: {"PE": 0.02**2, "Q": 0.5}.
        Lambda: In absolute mode, constants of the learning rate, with the same keys.
    """
    options = PlanOptions(
        rule=rule,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        depth=depth,
        eps=eps,
        expert_rule=expert_rule,
        rank_rule=rank_rule,
        repetition_rule=repetition_rule,
        gauge=gauge,
        decay=decay,
        batch=batch,
        tokens=tokens,
        horizon=horizon,
        critical_batch=critical_batch,
        axes=axes,
        no_decay=no_decay,
        decay_vectors=decay_vectors,
        init_scale=init_scale,
        init=init,
        overrides=overrides,
        inputs=inputs,
        probe=probe,
        score_power=score_power,
        C=C,
        Lambda=Lambda,
    )
    request = options.read(model)
    notes = (*request.lr_notes(optimizer), *request.instance_notes(optimizer))
    if base is None and not is_strategy(request.name):
        raise _no_base(request)
    if base is None or (isinstance(base, str) and base == ABSOLUTE):
        made = _absolute_plan(model, request, options)
        return replace(made, notes=(*made.notes, *notes))
    _refuse_constants(options)
    if isinstance(base, (str, PathLike)):
        base = _load_plan(base)
    made = _relative_plan(model, _read_base(model, base), request, options)
    made = replace(made, notes=(*made.notes, *_larger_base_notes(made), *notes))
    if isinstance(base, Plan) and base.applied:
        return _continue_applied(made, base)
    return made


def _refuse_constants(options: PlanOptions) -> None:
    """Raise an InputError for constants that belong to absolute mode."""
    for name, constants_of_mode in (("C", options.C), ("Lambda", options.Lambda)):
        if constants_of_mode:
            message = (
                "C, Lambda: only absolute mode (base='absolute') has these constants; relative to"
                " a base, the initial sizes and the learning rate of the base replace them"
            )
            raise InputError(message, "absolute-mode", argument=name)


def _absolute_plan(model: nn.Module, request: Request, options: PlanOptions) -> Plan:
    """Return a plan from power laws of the dimensions themselves."""
    forward_constants = constants.collect(model, options.inputs, options.probe)
    _check_inputs(model, options.inputs, forward_constants.note)
    order_one = OrderOne(options.C or {}, options.Lambda or {})
    return absolute.absolute_plan(model, request, order_one, forward_constants)


def _relative_plan(model: nn.Module, base: Base, request: Request, options: PlanOptions) -> Plan:
    """Return a plan relative to `base`, from what the forward passes of both show."""
    facts = _forward_facts(model, base, options)
    _check_inputs(model, options.inputs, facts.note)
    made = relative.relative_plan(unwrap(model), base, request, facts)
    if facts.pair is not None and init_check.can_observe(facts.pair):
        return _with_init_check(made, request, facts)
    return made


def _larger_base_notes(made: Plan) -> tuple[str, ...]:
    """Return a note if sizes of the model are below those of the base, and none is above."""
    ratios: set[float] = set()
    for row in made.rows:
        ratios |= {float(row.growth.fan_in), float(row.growth.fan_out), row.depth}
    if max(ratios, default=1.0) > 1 or min(ratios, default=1.0) >= 1:
        return ()
    note = (
        "the base is larger than the model. The plan carries the settings of the large model to the"
        " small one; to carry them to the large one, pass it as the model, and the small one as"
        " base="
    )
    return (with_code(note, "larger-base"),)


def _no_base(request: Request) -> InputError:
    message = (
        f"base: {request.name} scales settings that you tuned on a smaller model, the base, and no"
        " base was passed. Pass the model that you tuned, base=build(smaller sizes), or the sizes"
        ' in which a Hugging Face model differs from it, base={"hidden_size": 256}. Without a base,'
        ' base="absolute" computes all settings from the dimensions of the tensors'
    )
    return InputError(message, "needs-base", argument="base")


def _check_inputs(model: nn.Module, inputs: ExampleBatch | None, note: str) -> None:
    """Raise an InputError if the model was not traced because it does not accept `inputs`."""
    if inputs is None or code_of(note) != "probe-not-run":
        return
    inner = unwrap(model)
    if any(p.is_meta or hasattr(p, "device_mesh") for p in inner.parameters()):
        return
    args, kwargs = call_with(inputs)
    with undisturbed(inner), without_gradients(inner), naming_batch("inputs", inputs, inner):
        inner(*args, **kwargs)


def _forward_facts(model: nn.Module, base: Base, options: PlanOptions) -> ForwardFacts:
    if options.probe:
        return forward_facts.collect(model, base, options.inputs)
    return forward_facts.without_probe(model, base)


@dataclass(frozen=True)
class Family:
    """Maker of plans for models of many sizes: one request and one base for all.

    The forward pass is traced once, if one trace is valid for all sizes.
    """

    request: Request
    base: Base
    facts: ForwardFacts
    options: PlanOptions

    def plan(self, model: nn.Module, is_new: bool = False) -> Plan:
        """Return the plan for one of the models; `is_new` as in `relative.relative_plan`."""
        facts = self.facts
        if shapes_of(model) == self.base.shapes:
            facts = replace(facts, scores=(), routing={}, constant_growth={})  # nothing grows
        elif self.options.probe and (facts.scores or facts.routing or facts.constant_growth):
            # head size, experts and rank grow by another factor for every model
            facts = forward_facts.collect(model, self.base, self.options.inputs)
        return relative.relative_plan(unwrap(model), self.base, self.request, facts, is_new)

    def other_sizes(self, model: nn.Module) -> dict[str, set[tuple[int, int]]]:
        """Return the sizes of `relative.other_sizes`, in the base and in the model."""
        inner = unwrap(model)
        return relative.other_sizes(inner, self.base, self.request, self.facts)


def family(model: nn.Module, base: nn.Module, **keywords: object) -> Family:
    """Return a maker of `plan(model, base=base, ...)` for many models of one architecture.

    `model` should be the largest of them.
    """
    options = PlanOptions.from_keywords(keywords)
    read_base = _read_base(model, base)
    facts = _forward_facts(model, read_base, options)
    return Family(options.read(model), read_base, facts, options)


def _continue_applied(made: Plan, before: Plan) -> Plan:
    """Return the plan as applied if `before`, a plan of this very model, was applied."""
    if len(made.rows) != len(before.rows):
        return made
    rows = list(zip(made.rows, before.rows, strict=True))
    if any(row.shape != row_before.shape for row, row_before in rows):
        return made
    continued = replace(made, was_applied=True)
    if any(row.init_std != row_before.init_std for row, row_before in rows):
        # The saved plan may have traced an example batch, which this call has not.
        continued = replace(
            continued, rows=_rows_with_new_rates(made, before), multipliers=before.multipliers
        )
    apply.install(continued, continued.bound())
    return continued


def _rows_with_new_rates(made: Plan, before: Plan) -> tuple[Row, ...]:
    """Return the rows of an applied plan with the learning rate and weight decay of a new one.

    Raise an InputError if the new plan has other options, or settings per tensor.
    """
    now = made.settings
    then = before.settings
    unchanged = replace(then, lr=now.lr, weight_decay=now.weight_decay, base_sizes=now.base_sizes)
    if unchanged != now or now.per_tensor or not then.lr:
        message = (
            "base: the saved plan was applied to a model of this size as"
            f" {before.headline.split(':')[0]}, {then.gauge} gauge, depth={then.depth}; weights"
            " scaled by it do not fit another plan. Use the same options, or a base of another size"
        )
        raise InputError(message, "already-applied", argument="base")
    rates = now.lr / then.lr
    decays = 1.0
    if then.weight_decay:
        decays = now.weight_decay / then.weight_decay
    elif now.weight_decay:
        raise InputError(
            "weight_decay: the saved plan has none, so it cannot be continued with weight decay;"
            " pass inputs=, an example batch",
            "already-applied",
            argument="weight_decay",
        )
    rows: list[Row] = []
    for row in before.rows:
        blocks = tuple(
            replace(block, lr=block.lr * rates, weight_decay=block.weight_decay * decays)
            for block in row.blocks
        )
        rows.append(
            replace(row, lr=row.lr * rates, weight_decay=row.weight_decay * decays, blocks=blocks)
        )
    return tuple(rows)


def _with_init_check(made: Plan, request: Request, facts: ForwardFacts) -> Plan:
    """Compare the sizes of two small instances at initialization with the plan's prediction.

    The same request is applied to the instances; the result is added to the plan.
    """
    assert facts.pair is not None
    small = facts.pair.small
    try:
        large = init_check.writable(facts.pair)
        overrides = _matching_overrides(request, large)
        small_request = replace(request.uniform, depth=None, overrides=overrides)
        traced = facts
        if facts.pair.owned:  # both instances have the experts of the base
            traced = replace(facts, routing={})
        proof = relative.relative_plan(large, bases.from_module(small), small_request, traced)
        proof.apply()
        observations = init_check.observe(proof, small, large, facts.pair)
    except Exception as error:  # the user's forward code may raise anything
        failure = f"sizes at initialization were not compared ({type(error).__name__}: {error})"
        return replace(made, probe_summary=with_code(f"{facts.note}: {failure}", "probe-not-run"))
    summary, unexpected = init_check.summary(facts.note, observations, facts.pair.growth)
    notes = (*made.notes, *unexpected)
    return replace(made, observations=observations, probe_summary=summary, notes=notes)


def _matching_overrides(request: Request, model: nn.Module) -> dict[str, str]:
    """Return the overrides that match a tensor of a smaller instance, which has fewer layers."""
    names = list(inventory(model))
    overrides: dict[str, str] = {}
    for pattern, role in request.overrides.items():
        if fnmatch.filter(names, pattern):
            overrides[pattern] = role
    return overrides


def _load_plan(path: str | PathLike[str]) -> Plan:
    try:
        return Plan.load(path)
    except OSError as error:
        message = (
            f"base: {path} cannot be read ({error.strerror}); expected a file written by plan.save,"
            f" or base={ABSOLUTE!r}"
        )
        raise InputError(message, "not-a-plan-file", argument="base") from error


def _read_base(model: nn.Module, base: BaseInput) -> Base:
    if isinstance(base, nn.Module):
        return bases.from_module(base, model)
    if bases.is_configuration(base):
        return bases.from_module(bases.built(model, base, device="meta"), model)
    if isinstance(base, Mapping):
        return bases.from_overrides(model, base)
    if isinstance(base, Plan):
        return bases.from_plan(base, model)
    message = (
        "base: expected the model that you tuned (a module); for a Hugging Face model, the entries"
        ' of its configuration that were smaller, such as {"hidden_size": 256}; a plan or its path;'
        ' or "absolute"; got'
        f" {type(base).__name__}{pair_remedy(base)}"
    )
    raise InputError(message, "wrong-type", argument="base")
