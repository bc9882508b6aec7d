"""`coord_check`: train models of several sizes for a few steps, and judge how everything scales.

Every size and seed is one short training under a probe. Exponents of the size are fitted to each
quantity of each module and tensor, and compared with the predictions of the rule.

The smallest and the largest model are built and planned before any training, so that mistakes are
reported at once. If a later run fails, the results of the other runs are used.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache, cached_property
from inspect import signature
from typing import Any, Literal

from torch import nn
from torch.optim import Muon, Optimizer

from orderone import rules
from orderone.core.errors import InputError, function, one_of, with_code, without_code
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.loading.examples import read_examples
from orderone.measure import records
from orderone.measure.alignment_ratios import Layer, layers_of, observe
from orderone.measure.check import Check
from orderone.measure.horizon_check import BATCH, TOKENS, HorizonStudy, read_horizon_sizes
from orderone.measure.inputs import (
    BaseInput,
    BatchesInput,
    BuildInput,
    Built,
    CollateInput,
    LossInput,
    OptimizerInput,
    PatternsInput,
    Progress,
    ProgressInput,
    RateInput,
    RuleInput,
    SchedulerInput,
    SeedsInput,
    SizesInput,
)
from orderone.measure.judge.judging import judge
from orderone.measure.observations import Observations, StudyResult
from orderone.measure.optimizer_law import law_of
from orderone.measure.output_linearity import nonlinear_layers
from orderone.measure.recording import DEFAULT, QUANTITIES
from orderone.measure.runs import (
    EXPERT_COUNT,
    RANK,
    REPETITION,
    WIDTH,
    Builder,
    Run,
    RunOptions,
    Setup,
    cast_batches,
    model_of,
    names_by_id,
    plan_family,
    read_seeds,
    read_setup,
    read_sizes,
    run_all,
    same_schedule,
    train,
)
from orderone.measure.same_loss import is_same_loss
from orderone.measure.spare_state import SpareState
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import (
    Batch,
    Loss,
    draws_randomly,
    on_device,
)
from orderone.observe.inventory import read_patterns, shapes_of
from orderone.observe.precision import Precision, read_precision
from orderone.observe.quantities import Quantity
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.table import Algorithm, label_of, nearest_record
from orderone.planning import BrokenRatios, Plan
from orderone.planning.build import Family
from orderone.planning.counterparts import is_number, numbered, stack_of
from orderone.planning.options import OPTION_NAMES
from orderone.planning.schedule import remedy, simulated_rates
from orderone.seeding import preserved
from orderone.torch_compat import has_gradient_hooks

# axis -> argument of coord_check, option of plan
RULES_OF_AXES = {
    EXPERT_COUNT: ("experts", "expert_rule"),
    RANK: ("ranks", "rank_rule"),
    REPETITION: ("repetitions", "repetition_rule"),
}
PLAN_OPTIONS = tuple(name for name in OPTION_NAMES if name not in ("C", "Lambda"))


def coord_check(
    build: BuildInput,
    widths: SizesInput | None = None,
    *,
    depths: SizesInput | None = None,
    experts: SizesInput | None = None,
    ranks: SizesInput | None = None,
    repetitions: SizesInput | None = None,
    batch_sizes: SizesInput | None = None,
    tokens: SizesInput | None = None,
    rule: RuleInput | None = None,
    optimizer: OptimizerInput = "adamw",
    lr: RateInput | None = None,
    batches: BatchesInput | None = None,
    batch_size: Count | None = None,
    collate_fn: CollateInput | None = None,
    loss: LossInput | None = None,
    steps: Count = 4,
    seeds: SeedsInput = 3,
    base: BaseInput | None = None,
    scheduler: SchedulerInput | None = None,
    precision: Name = "float32",
    frozen: PatternsInput = (),
    confidence: Number = 0.99,
    progress: ProgressInput | Literal[False] | None = None,
    **plan_options: object,
) -> Check:
    """Check whether activations and updates stay of order one as the model grows.

    The result has a verdict for every module and tensor, and likely causes of failures.

    Args:
        build: A function of the width (or depth). It returns an nn.Module, to which `rule` is
            applied; or a plan; or (module, optimizer) or (module, optimizer, scheduler) for a
            model that is scaled already, which is judged as it is.
        widths: At least two sizes; four or five are better.
        depths: Depths to pass to `build` instead of widths. Pass `depth="sqrt"` or `"completep"`
            as well.
        experts: Numbers of experts to pass to `build` instead of widths.
        ranks: Ranks of adapters (LoRA) to pass to `build` instead of widths.
        repetitions: Numbers of queries that share a key (grouped-query attention) to pass to
            `build` instead of widths.
        batch_sizes: Batch sizes to compare, for one model: `build` takes no arguments then. Every
            batch has as many samples as the largest size; smaller ones are parts of it, so that all
            sizes train on the same samples. `steps` counts those of the largest.
        tokens: Amounts of training tokens to compare, for one model, with a batch of constant
            size. `steps` counts those of the smallest. Beside another axis, this is the option of
            `plan`: (base, target).
        rule: The model is judged by the predictions of this rule. By default that of the plan that
            `build` returns, otherwise mup.
        optimizer: As in `plan`.
        lr: As in `plan`.
        batches: One batch (tensor, dict of keyword arguments, or pair of inputs and targets) for
            all steps, a list with one batch for each step, a DataLoader, another iterable of
            batches, a data set with `batch_size`, a task of `orderone.data`, or a function of
            (step, seed). All sizes and seeds train on the same batches.
        batch_size: Samples in a batch, for a data set, a DataLoader or a function that takes it.
        collate_fn: Function that makes a batch of a list of samples, for a data set.
        loss: `loss(output, target)` for pairs, `loss(output, batch)` otherwise. The default is the
            loss that the model returns; for pairs cross entropy (integer targets) or mean squared
            error (real targets).
        steps: Number of updates.
        seeds: Number of seeds, or a list of seeds.
        base: The size whose hyperparameters were tuned, or a module of that size; the default is
            the smallest size.
        scheduler: A function of the optimizer that returns a learning-rate scheduler.
        precision: float32, bfloat16 or float16 (autocast), or float64, as in `sweep`. In half
            precision, gradients and changes that are smaller than its rounding errors are not
            judged.
        frozen: Patterns of tensors that are not trained on purpose, although their
            `requires_grad` is True.
        confidence: Confidence level of the intervals.
        progress: A function that is called with the number of finished runs, the number of all
            runs, and a description of the current run. None or False: no function is called.
        plan_options: Further options of `plan`: weight_decay, depth, gauge, decay, overrides, ...
    """
    steps = count(steps, "steps")
    for name in plan_options:
        arguments = signature(coord_check).parameters
        one_of(name, PLAN_OPTIONS, "option of coord_check or plan", also=arguments)
    if not isinstance(confidence, (int, float)) or not 0 < confidence < 1:
        message = f"confidence: expected a number between 0 and 1, got {confidence!r}"
        raise InputError(message, argument="confidence")
    chosen = Precision(read_precision(precision))
    function(loss, "loss", "of output and target")
    function(scheduler, "scheduler", "of the optimizer that returns a scheduler")
    if progress is False:  # as in `sweep`: no progress
        progress = None
    function(progress, "progress", "of the finished runs, all runs and the current run")
    settings: dict[str, Any] = {"rule": rule, "optimizer": optimizer, "lr": lr, **plan_options}
    of_models = {
        "widths": widths,
        "depths": depths,
        "experts": experts,
        "ranks": ranks,
        "repetitions": repetitions,
    }
    no_growth = all(values is None for values in of_models.values())
    if batch_sizes is not None or (tokens is not None and no_growth):
        if not no_growth or (batch_sizes and tokens):
            message = (
                f"batch_sizes: expected sizes of one axis, got several; pass one of"
                f" {', '.join(of_models)}, batch_sizes or tokens"
            )
            raise InputError(message, "several-axes", argument="batch_sizes")
        axis = TOKENS if batch_sizes is None else BATCH
        values = tokens if batch_sizes is None else batch_sizes
        assert values is not None  # one of the two was passed
        study = HorizonStudy(
            axis=axis,
            sizes=read_horizon_sizes(values, "batch_sizes" if axis == BATCH else "tokens", axis),
            build=_checked_build(build),
            base=None if base is None else count(base, "base"),
            settings={**settings, "rule": "mup" if rule is None else rule},
            data=batches,
            batch_size=batch_size,
            collate_fn=collate_fn,
            loss=loss,
            seeds=tuple(read_seeds(seeds)),
            steps=steps,
            scheduler=scheduler,
            precision=chosen,
            confidence=float(confidence),
        )
        with preserved():
            return study.run(progress)
    if tokens is not None:
        settings["tokens"] = tokens
    axis, sizes = read_sizes(**of_models)
    with preserved():  # the check sets seeds
        seed_list = read_seeds(seeds)
        example = read_examples(batches, steps, batch_size, collate_fn)
        study = _Study(
            builder=Builder(build, axis, base, seed_list[0], chosen),
            sizes=sizes,
            settings=settings,
            batches=cast_batches(example.batches, chosen),
            loss=loss,
            seeds=seed_list,
            steps=steps,
            scheduler=scheduler,
            frozen=frozen,
        )
        study.notes += example.notes
        result = study.run(progress)
    return judge(result, float(confidence))


def _checked_build(build: BuildInput) -> Callable[..., Any]:
    if isinstance(build, nn.Module) or not callable(build):
        message = f"build: expected a function without arguments, got {type(build).__name__}"
        raise InputError(message, "wrong-type", argument="build")
    return build


class _Study:
    """The runs of a coordinate check; `run` returns the result."""

    def __init__(
        self,
        builder: Builder,
        sizes: list[int],
        settings: dict[str, Any],
        batches: list[Batch],
        loss: Loss | None,
        seeds: list[int],
        steps: int,
        scheduler: SchedulerInput | None,
        frozen: PatternsInput,
    ):
        self.builder = builder
        self.axis = builder.axis
        self.precision = builder.precision
        self.sizes = sizes
        self.settings = settings  # keyword arguments of `plan`
        self.batches = batches
        self.loss = loss
        self.seeds = seeds
        self.steps = steps
        self.scheduler = scheduler
        self.notes: list[str] = []
        self.troubles: list[str] = []
        self.schedule_fault = ""  # fault of the schedule; empty if there is none
        self.first_step = 0
        self.plans: dict[int, Plan] = {}
        self.runs: list[Run] = []
        self._spare = SpareState()  # of the largest model
        self._built: dict[tuple[int, int], Built] = {}  # by size and seed, not trained yet
        self._schedules: dict[str, list[float]] = {}  # of the first model, by tensor
        self._measurable: set[str] | None = None  # layers whose alignment can be measured
        # weight decay is added to gradients; these are random, so that every seed counts
        self._has_penalties = False
        self._quantities = QUANTITIES
        if len(batches) < steps:
            trouble = f"batches ran out after {len(batches)} of {steps} steps"
            self.troubles.append(with_code(trouble, "too-few-batches"))
        self._read_extremes(frozen)
        self.nonlinear = self._nonlinear_layers()
        # it matters where steps follow gradients
        self.same_loss = self._follows_gradients and is_same_loss(
            (self.small, self.large), batches[0], loss, self.precision
        )

    # --- before training --------------------------------------------------------------------------

    def _read_extremes(self, frozen: PatternsInput) -> None:
        """Build the smallest and the largest model, and plan them."""
        seed = self.seeds[0]
        smallest = self.builder.built(self.sizes[0], seed)
        largest = self.builder.built(self.sizes[-1], seed)
        self._built = {(self.sizes[0], seed): smallest, (self.sizes[-1], seed): largest}
        self.small = model_of(smallest)
        self.large = model_of(largest)
        self.frozen = read_patterns(frozen, self.large, "frozen")
        self._read_built(smallest, largest)
        self.key: Callable[[str], str] = _shared_names(self.small, self.large)
        self.no_growth = shapes_of(self.small) == shapes_of(self.large)
        self.family = self._family()
        if self.family is not None:
            self._check_axis(self.family)

    def _nonlinear_layers(self) -> frozenset[str]:
        """Return the common names of layers whose output is not proportional to their tensors."""
        batch = on_device(self.batches[0], self.small)
        with self.precision.passes(self.small), naming_batch("batches", batch, self.small):
            names = nonlinear_layers(self.small, batch)
        return frozenset(self.key(name) for name in names)

    @property
    def _follows_gradients(self) -> bool:
        """Whether the steps of the optimizer follow the size of gradients (SGD)."""
        if self.family is None:
            return False
        return self.family.request.algorithm.update_law.gradient > 0

    def _check_axis(self, family: Family) -> None:
        """Raise an InputError if the model has no such axis, or no rule for it."""
        if self.axis not in RULES_OF_AXES:
            return
        argument, option = RULES_OF_AXES[self.axis]
        if getattr(family.request, option) is None:
            message = (
                f"{argument}: {option}=None means that no setting follows the {self.axis}, so there"
                f" is nothing to check; leave {option} out"
            )
            raise InputError(message, "axis-not-found", argument=argument)
        found = family.other_sizes(self.large)[self.axis]
        if not any(target == self.sizes[-1] and base != target for base, target in found):
            sizes = ", ".join(f"{base} and {target}" for base, target in sorted(found)) or "none"
            message = (
                f"{argument}: expected build({self.sizes[-1]}) to return a model whose {self.axis}"
                f" is {self.sizes[-1]}, and a base with a smaller one; got {sizes} (base and model)"
            )
            raise InputError(message, "axis-not-found", argument=argument)

    def _read_built(self, smallest: Built, largest: Built) -> None:
        """Read optimizer and plan from what `build` returned.

        A model with an optimizer may use any gauge; a plan names its gauge.
        """
        first, *rest = largest if isinstance(largest, (tuple, list)) else (largest,)
        self.has_user_optimizer = bool(rest)
        self._user_optimizer = rest[0] if rest else None  # of the largest model
        self.is_planned_here = isinstance(first, nn.Module) and not rest
        self.user_plan = None
        if isinstance(first, Plan):
            self.user_plan = first
        if rest and isinstance(smallest, (tuple, list)):
            self._read_law(smallest)
        if self.user_plan:
            settings = self.user_plan.settings
            self.settings |= {"gauge": settings.gauge, "depth": settings.depth}
            self.settings["expert_rule"] = settings.expert_rule
            self.settings["rank_rule"] = settings.rank_rule
            self.settings["repetition_rule"] = settings.repetition_rule
            self.settings["decay"] = settings.decay
            self.settings["lr"] = settings.per_tensor.get("lr", settings.lr)
            self.settings["optimizer"] = self.user_plan.user_class or settings.optimizer
            if self.settings["rule"] is None and rules.is_known(settings.rule):
                self.settings["rule"] = settings.rule
        if self.settings["rule"] is None:
            self.settings["rule"] = "mup"

    def _read_law(self, smallest: tuple[object, ...] | list[object]) -> None:
        """Find the update law of the user's optimizer, by a few steps on a copy if necessary."""
        optimizer = None
        if len(smallest) > 1:
            optimizer = smallest[1]
        law = law_of(self.small, optimizer, self.settings["optimizer"], self.steps)
        self.settings["optimizer"] = law.optimizer
        self.first_step = law.begins
        if law.note:
            self.notes.append(law.note)
        if law.trouble:
            self.troubles.append(law.trouble)

    @property
    def _assigned(self) -> dict[str, Algorithm]:
        """Optimizers by tensor, where a plan would choose others: of several, or of Muon alone.

        A plan leaves some matrices to AdamW, which the user may have given to Muon.
        """
        optimizer = self._user_optimizer
        parts: list[Optimizer] = []
        if isinstance(optimizer, CombinedOptimizer):
            parts = list(optimizer.parts.values())
        elif isinstance(optimizer, Muon):
            parts = [optimizer]
        names = names_by_id(self.large)
        assigned: dict[str, Algorithm] = {}
        for part in parts:
            record = nearest_record(type(part))
            if record is None:
                continue
            for group in part.param_groups:
                for tensor in group["params"]:
                    if id(tensor) in names:
                        assigned[names[id(tensor)]] = record
        return assigned

    def _family(self) -> Family | None:
        """Return the maker of plans, with plans of the extremes; None if planning fails."""
        base = self.builder.base_model(self.small)
        try:
            family = plan_family(self.large, base, self.batches[0], self.settings)
            family = replace(family, request=replace(family.request, assigned=self._assigned))
            if self.has_user_optimizer and self.axis == WIDTH:
                # no plan is applied: how initial sizes depend on the depth is left to the model
                own_depths = dict.fromkeys(shapes_of(self.large), 1.0)
                family = replace(family, base=replace(family.base, own_depths=own_depths))
            self.plans[self.sizes[0]] = family.plan(self.small)
            self.plans[self.sizes[-1]] = family.plan(self.large)
            return family
        except ValueError as error:
            if self.is_planned_here:
                raise
            self.plans.clear()
            trouble = f"no predictions for tensors, as planning failed: {without_code(str(error))}"
            self.troubles.append(with_code(trouble, "no-predictions"))
            return None

    @cached_property
    def _fixed(self) -> bool:
        """True if all batches are the same, and passes on them draw no random numbers.

        Changes of outputs are then measured in the training passes, without extra passes.
        """
        same = all(batch is self.batches[0] for batch in self.batches)
        if not same:
            return False
        batch = on_device(self.batches[0], self.small)
        with self.precision.passes(self.small), naming_batch("batches", batch, self.small):
            return not draws_randomly(self.small, batch)

    # --- running ----------------------------------------------------------------------------------

    def run(self, progress: Progress | None) -> StudyResult:
        """Train all sizes and seeds."""
        troubles, interrupted = run_all(self.sizes, self.seeds, self._run, self.axis, progress)
        return StudyResult(
            observations=Observations(self.axis, self.key, tuple(self.runs)),
            sizes=tuple(self.sizes),
            largest=self.large,
            no_growth=self.no_growth,
            rule=self._rule_name,
            depth_rule=self.settings.get("depth"),
            family=self.family,
            plans=self.plans,
            user_plan=self.user_plan,
            has_user_optimizer=self.has_user_optimizer,
            first_step=self.first_step,
            frozen=self.frozen,
            nonlinear=self.nonlinear,
            undone=self._undone,
            schedule_fault=self.schedule_fault,
            notes=tuple(self.notes),
            troubles=(*self.troubles, *troubles),
            precision=self.precision,
            provenance=self._provenance(),
            interrupted=interrupted,
            same_loss=self.same_loss,
        )

    def _run(self, size: int, seed: int) -> None:
        built = self._built.pop((size, seed), None)
        if built is None:
            built = self.builder.built(size, seed)
        setup = read_setup(built, lambda model: self._plan(model, size), self.scheduler)
        if seed == self.seeds[0]:
            self._check_schedule(setup, size)
        run = train(
            setup, self.batches, self.loss, size, seed, self._options(setup.model, size, seed)
        )
        self._has_penalties |= bool(run.penalties)
        if not any(quantity == Quantity.SCORES for _, _, quantity, _ in run.rows):
            self._quantities = DEFAULT  # no attention, hence no scores to watch
        if run.ended:
            trouble = f"{self.axis} {size}, seed {seed}: {run.ended}"
            self.troubles.append(with_code(trouble, "run-diverged"))
        for remark in run.remarks:
            self._note_once(remark)
        self.runs.append(run)

    def _options(self, model: nn.Module, size: int, seed: int) -> RunOptions:
        """Return the measurements to make with this seed.

        Quantities that are not random, or that only explain verdicts, are measured with the first
        seed only.
        """
        spare = None
        if self.is_planned_here and size == self.sizes[-1]:
            spare = self._spare
        if seed == self.seeds[0]:
            return RunOptions(
                self._fixed,
                True,
                self._layers(model),
                self._quantities,
                self.precision,
                rounding=True,
                unused=size == self.sizes[-1],
                clipping=self._may_clip(model),
                spare=spare,
            )
        return RunOptions(
            self._fixed,
            self._has_penalties,
            quantities=self._quantities,
            precision=self.precision,
            spare=spare,
        )

    def _may_clip(self, model: nn.Module) -> bool:
        """Return whether clipped gradients change steps, and something may clip them."""
        if not self._follows_gradients:
            return False
        return not self.is_planned_here or any(has_gradient_hooks(p) for p in model.parameters())

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _layers(self, model: nn.Module) -> list[Layer]:
        """Return the matrices whose alignment can be measured.

        Each is applied by one module alone, to enough tokens.
        """
        if self.family is None or self.axis != WIDTH:
            return []
        roles = {row.name: row.role for row in self.plans[self.sizes[-1]].rows}
        layers, _ = layers_of(model, roles)
        if self._measurable is None:
            batch = on_device(self.batches[0], model)
            inputs = observe(model, layers, {"": batch}, self.precision).inputs[""]
            self._measurable = set()
            for layer in layers:
                if layer.name in inputs and layer.is_measurable(inputs[layer.name]):
                    self._measurable.add(layer.name)
        return [layer for layer in layers if layer.name in self._measurable]

    def _plan(self, model: nn.Module, size: int) -> Plan:
        assert self.family is not None  # otherwise its error was raised
        if size not in self.plans:
            self.plans[size] = self.family.plan(model)
        # the model was just built: there are no earlier sizes to compare it with
        return replace(self.plans[size], model=model, planned={})

    def _check_schedule(self, setup: Setup, size: int) -> None:
        """Set `schedule_fault` if a schedule depends on the size.

        Each tensor's learning rates, divided by those of the smallest model, must be the same
        number at every step. Without a schedule, a plan is compared with the groups.
        """
        if self.schedule_fault:
            return
        try:
            if setup.scheduler is not None:
                self._compare_schedule(setup, size)
            elif setup.plan is not None and not self.is_planned_here:
                setup.plan.check(setup.optimizer)
        except BrokenRatios as error:
            self.schedule_fault = without_code(str(error))
        except ValueError as error:  # the schedule could not be simulated
            self._note_once(str(error))

    def _compare_schedule(self, setup: Setup, size: int) -> None:
        rates = simulated_rates(setup.optimizer, setup.scheduler)
        names = names_by_id(setup.model)
        schedules: dict[str, list[float]] = {}
        for number, group in enumerate(setup.optimizer.param_groups):
            schedule = [rates_now[number] for rates_now in rates]
            for tensor in group["params"]:
                if id(tensor) in names:
                    schedules[self.key(names[id(tensor)])] = schedule
        for name, first in self._schedules.items():
            if name in schedules and not same_schedule(first, schedules[name]):
                self.schedule_fault = (
                    f"the learning rates of {name} at {self.axis} {size} and at {self.sizes[0]}"
                    " have a ratio that changes from step to step."
                    f" {remedy(setup.optimizer, setup.scheduler)}"
                )
                return
        self._schedules = self._schedules or schedules

    # --- after training ---------------------------------------------------------------------------

    @property
    def _undone(self) -> tuple[str, ...]:
        """Changes that the applied plan leaves to the model's code."""
        if self.user_plan:
            applied = self.user_plan
        elif self.is_planned_here:
            applied = self.plans.get(self.sizes[-1])
        else:
            applied = None
        if not applied:
            return ()
        return tuple(f"at {self.axis} {self.sizes[-1]}, {task}" for task in applied.undone)

    @property
    def _rule_name(self) -> str:
        rule = self.settings["rule"]
        if isinstance(rule, str):
            return rule
        return rule.name

    def _provenance(self) -> dict[str, object]:
        applied = None
        if not self.has_user_optimizer:
            applied = self.user_plan or self.plans.get(self.sizes[-1])
        plan_hash = ""
        if applied is not None:
            plan_hash = _plan_hash(applied)
        return {
            "rule": self._rule_name,
            "optimizer": label_of(self.settings["optimizer"]),
            "lr": self.settings["lr"],
            "sizes": self.sizes,
            "steps": self.steps,
            "seeds": self.seeds,
            "precision": self.precision.name,
            "plan": plan_hash,
            **records.VERSIONS,
        }


def _plan_hash(plan: Plan) -> str:
    """Return a hash that is the same for the same plan; it leaves out sentences."""
    settings = asdict(plan.settings)
    rows = [replace(row, reason="") for row in plan.rows]
    content = [settings, *map(asdict, plan.multipliers), *map(asdict, rows)]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- models with lists of different lengths -------------------------------------------------------


def _shared_names(small: nn.Module, large: nn.Module) -> Callable[[str], str]:
    """Return a function that gives a module or tensor the name of its counterparts in all layers.

    `layers.7.mlp` becomes `layers.*.mlp`. Only numbers that count layers are replaced: those of a
    sequence that is longer in the large model (more layers, or more heads as separate modules). In
    a sequence of constant length (`layers.7.mlp.2`) numbers name different things.
    """
    shallow = _lengths_of_sequences(small)
    deep = _lengths_of_sequences(large)
    stacks = {parent for parent, length in deep.items() if length != shallow.get(parent)}

    @cache  # every row of every run is renamed
    def key(name: str) -> str:
        parts = name.split(".")
        shared = []
        for position, part in enumerate(parts):
            if is_number(part) and stack_of(".".join(parts[:position])) in stacks:
                part = stack_of(part)
            shared.append(part)
        return ".".join(shared)

    return key


def _lengths_of_sequences(model: nn.Module) -> Mapping[str, int]:
    """Return the length of every sequence, by the name that its counterparts share."""
    lengths: dict[str, int] = {}
    for name in (*dict(model.named_modules()), *dict(model.named_parameters())):
        parts = name.split(".")
        for position, part in enumerate(parts):
            number = numbered(part)[1]
            if number is not None:
                parent = stack_of(".".join(parts[:position]))
                lengths[parent] = max(lengths.get(parent, 0), number + 1)
    return lengths
