"""`coord_check`: train small models of several sizes for a few steps, fit exponents to everything,
and judge them.

Every size and seed is one short training under a probe. Exponents of the size are fitted to each
quantity of each module and tensor, and compared with what the rule predicts there.

The smallest and the largest model are read before anything is trained, so that what cannot work is
reported at once. A later failure costs one run; what was measured stays.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import nn

from orderone import rules
from orderone.core.errors import function, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.measure import records
from orderone.measure.alignment_ratios import Layer, layers_of, observe
from orderone.measure.check import Check
from orderone.measure.inputs import (
    BaseInput,
    BatchesInput,
    BuildInput,
    Built,
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
from orderone.measure.judge.judging import Judge
from orderone.measure.observations import Observations, StudyResult
from orderone.measure.optimizer_steps import law_of
from orderone.measure.recording import DEFAULT, QUANTITIES
from orderone.measure.runs import (
    Run,
    Setup,
    model_of,
    read_seeds,
    read_setup,
    read_sizes,
    run_all,
    train,
)
from orderone.observe.batches import (
    Batch,
    Loss,
    call_inputs,
    draws_randomly,
    on_device,
    read_batches,
)
from orderone.observe.inventory import read_patterns, shapes_of
from orderone.observe.quantities import Quantity
from orderone.optimizers.table import label_of
from orderone.planning import BrokenRatios, Plan
from orderone.planning.build import Family, family
from orderone.planning.counterparts import stack_of
from orderone.planning.file import as_record
from orderone.planning.options import OPTION_NAMES
from orderone.planning.schedule import check_ratios
from orderone.seeding import preserved, set_seed

PLAN_OPTIONS = tuple(name for name in OPTION_NAMES if name not in ("C", "Lambda"))


def coord_check(
    build: BuildInput,
    widths: SizesInput | None = None,
    *,
    depths: SizesInput | None = None,
    rule: RuleInput | None = None,
    optimizer: OptimizerInput = "adamw",
    lr: RateInput | None = None,
    batches: BatchesInput | None = None,
    loss: LossInput | None = None,
    steps: Count = 4,
    seeds: SeedsInput = 3,
    base: BaseInput | None = None,
    scheduler: SchedulerInput | None = None,
    frozen: PatternsInput = (),
    confidence: Number = 0.99,
    progress: ProgressInput | None = None,
    **plan_options: object,
) -> Check:
    """Does everything stay of order one as the model grows? A verdict for every module, and a
    likely cause.

    Args:
        build: A function of the width (or depth) that returns an nn.Module, to which `rule` is
            applied; or a plan; or (module, optimizer), with a scheduler as a third, for a model
            that is scaled already: it is judged as it is.
        widths: At least two sizes, better four or five.
        depths: The same for `build(depth)`; give `depth="sqrt"` or `"completep"` with it.
        rule, optimizer, lr: As in `plan`. `rule` is also what the model is judged by; by default
            mup, or that of a plan.
        batches: One batch (tensor, dict of keyword arguments, or pair of inputs and targets), used
            at every step, or a sequence with one for each step.
        loss: `loss(output, target)` for pairs, `loss(output, batch)` otherwise; by default the
            model's own, or cross entropy (mean squares) of a pair with whole (real) targets.
        steps: Updates.
        seeds: How many, or which.
        base: The size that was tuned, or a module of it; by default the smallest.
        scheduler: A function of the optimizer that returns a learning-rate scheduler.
        frozen: Patterns of tensors that are not trained on purpose.
        confidence: Of the intervals.
        progress: Called with the number of runs done, of all, and what runs now.
        plan_options: weight_decay, depth, gauge, decay, overrides, ... of `plan`.
    """
    steps = count(steps, "steps")
    for name in plan_options:
        one_of(name, PLAN_OPTIONS, "option of coord_check or plan")
    if not 0 < float(confidence) < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence}")
    function(loss, "loss", "of output and target")
    function(scheduler, "scheduler", "of the optimizer that returns a scheduler")
    function(progress, "progress", "of the number of runs done, of all, and what runs now")
    axis, sizes = read_sizes(widths, depths)
    with preserved():  # the check sets seeds of its own
        study = _Study(
            build=build,
            axis=axis,
            sizes=sizes,
            settings={"rule": rule, "optimizer": optimizer, "lr": lr, **plan_options},
            batches=read_batches(batches, steps),
            loss=loss,
            seeds=read_seeds(seeds),
            steps=steps,
            base=base,
            scheduler=scheduler,
            frozen=frozen,
        )
        result = study.run(progress)
    return Judge(result, float(confidence)).judge()


class _Study:
    """The runs of a coordinate check, on their way; `run` returns the result."""

    def __init__(
        self,
        build: BuildInput,
        axis: str,
        sizes: list[int],
        settings: dict[str, Any],
        batches: list[Batch],
        loss: Loss | None,
        seeds: list[int],
        steps: int,
        base: BaseInput | None,
        scheduler: SchedulerInput | None,
        frozen: PatternsInput,
    ):
        if isinstance(build, nn.Module) or not callable(build):
            raise ValueError(
                f"build: expected a function of the {axis}, got {type(build).__name__}"
            )
        self.build = build
        self.axis = axis
        self.sizes = sizes
        self.settings = settings  # of `plan`
        self.batches = batches
        self.loss = loss
        self.seeds = seeds
        self.steps = steps
        self.base = base
        self.scheduler = scheduler
        self.notes: list[str] = []
        self.troubles: list[str] = []
        self.schedule = ""  # what is wrong with it
        self.first_step = 0
        self.plans: dict[int, Plan] = {}
        self.runs: list[Run] = []
        self._built: dict[tuple[int, int], Built] = {}  # by size and seed, not trained yet
        self._measurable: set[str] | None = None  # layers whose alignment can be measured
        self._has_penalties = False  # weight decay is added to gradients, which are random
        self._quantities = QUANTITIES
        if len(batches) < steps:
            self.troubles.append(f"batches ran out after {len(batches)} of {steps} steps")
        self._read_extremes(frozen)

    # --- before -----------------------------------------------------------------------------------

    def _read_extremes(self, frozen: PatternsInput) -> None:
        """Build the smallest and the largest model, read what they are, and plan them."""
        seed = self.seeds[0]
        smallest = self._build(self.sizes[0], seed)
        largest = self._build(self.sizes[-1], seed)
        self._built = {(self.sizes[0], seed): smallest, (self.sizes[-1], seed): largest}
        self.small = model_of(smallest)
        self.large = model_of(largest)
        self.frozen = read_patterns(frozen, self.large, "frozen")
        self._read_built(smallest, largest)
        self.key: Callable[[str], str] = str
        if self.axis == "depth":
            self.key = _shared_names(self.small, self.large)
        self.no_growth = shapes_of(self.small) == shapes_of(self.large)
        self.family = self._family()
        if self.family is not None:
            self.plans[self.sizes[0]] = self.family.plan(self.small)
            self.plans[self.sizes[-1]] = self.family.plan(self.large)

    def _build(self, size: int, seed: int) -> Built:
        set_seed(seed)
        return self.build(size)

    def _read_built(self, smallest: Built, largest: Built) -> None:
        """Read optimizer and plan from what `build` returned.

        A model with its own optimizer is judged in any gauge; a plan names its gauge.
        """
        first, *rest = largest if isinstance(largest, (tuple, list)) else (largest,)
        self.has_own_optimizer = bool(rest)
        self.is_planned_here = isinstance(first, nn.Module) and not rest
        self.user_plan = first if isinstance(first, Plan) else None
        if rest and isinstance(smallest, (tuple, list)):
            self._read_law(smallest)
        if self.user_plan:
            settings = self.user_plan.settings
            self.settings |= {"gauge": settings.gauge, "depth": settings.depth, "lr": settings.lr}
            self.settings["optimizer"] = self.user_plan.user_class or settings.optimizer
            if self.settings["rule"] is None and settings.rule in rules.names():
                self.settings["rule"] = settings.rule
        if self.settings["rule"] is None:
            self.settings["rule"] = "mup"

    def _read_law(self, smallest: tuple[object, ...] | list[object]) -> None:
        """Find the law of the smallest model's optimizer, which takes a few steps on a copy."""
        optimizer = smallest[1] if len(smallest) > 1 else None
        law = law_of(self.small, optimizer, self.settings["optimizer"], self.steps)
        self.settings["optimizer"] = law.optimizer
        self.first_step = law.begins
        if law.note:
            self.notes.append(law.note)
        if law.trouble:
            self.troubles.append(law.trouble)

    def _family(self) -> Family | None:
        if self.base is None:
            base = self.small
        elif isinstance(self.base, nn.Module):
            base = self.base
        else:
            base = model_of(self._build(count(self.base, "base"), self.seeds[0]))
        inputs = on_device(call_inputs(self.batches[0]), self.large)
        try:
            return family(self.large, base, **{"inputs": inputs, **self.settings})
        except ValueError as error:
            if self.is_planned_here:
                raise
            self.notes.append(f"no predictions for tensors: {error}")
            return None

    @cached_property
    def _fixed(self) -> bool:
        """Whether all batches are one, and passes on it draw no random numbers.

        Training then shows the changes too.
        """
        same = all(batch is self.batches[0] for batch in self.batches)
        return same and not draws_randomly(self.small, on_device(self.batches[0], self.small))

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
            has_own_optimizer=self.has_own_optimizer,
            first_step=self.first_step,
            frozen=self.frozen,
            undone=self._undone,
            schedule=self.schedule,
            notes=tuple(self.notes),
            troubles=(*self.troubles, *troubles),
            provenance=self._provenance(),
            interrupted=interrupted,
        )

    def _run(self, size: int, seed: int) -> None:
        built = self._built.pop((size, seed), None)
        if built is None:
            built = self._build(size, seed)
        setup = read_setup(built, lambda model: self._plan(model, size), self.scheduler)
        self._check_schedule(setup)
        # one seed is enough for what is not random, or only explains
        is_first_seed = seed == self.seeds[0]
        run = train(
            setup,
            self.batches,
            self.loss,
            size,
            seed,
            fixed=self._fixed,
            decay=is_first_seed or self._has_penalties,
            layers=self._layers(setup.model) if is_first_seed else (),
            quantities=self._quantities,
        )
        self._has_penalties |= bool(run.penalties)
        if not any(quantity == Quantity.SCORES for _, _, quantity, _ in run.rows):
            self._quantities = DEFAULT  # no attention: its scores need not be watched
        if run.ended:
            self.troubles.append(f"{self.axis} {size}, seed {seed}: {run.ended}")
        for remark in run.remarks:
            self._note_once(remark)
        self.runs.append(run)

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _layers(self, model: nn.Module) -> list[Layer]:
        """Return the matrices whose alignment can be measured.

        Modules of their own apply them, to enough tokens.
        """
        if self.family is None or self.axis == "depth":
            return []
        roles = {row.name: row.role for row in self.plans[self.sizes[-1]].rows}
        layers, _ = layers_of(model, roles)
        if self._measurable is None:
            inputs = observe(model, layers, {"": on_device(self.batches[0], model)}).inputs[""]
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

    def _check_schedule(self, setup: Setup) -> None:
        if self.schedule or (setup.plan is None and setup.scheduler is None):
            return
        try:
            if setup.plan is not None:
                setup.plan.check(setup.optimizer, setup.scheduler)
            else:
                check_ratios(setup.optimizer, setup.scheduler)
        except BrokenRatios as error:
            self.schedule = str(error)
        except ValueError as error:  # it could not be simulated
            self._note_once(str(error))

    # --- after ------------------------------------------------------------------------------------

    @property
    def _undone(self) -> tuple[str, ...]:
        """What the applied plan leaves to the model's own code."""
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
        return rule if isinstance(rule, str) else rule.name

    def _provenance(self) -> dict[str, object]:
        applied = None
        if not self.has_own_optimizer:
            applied = self.user_plan or self.plans.get(self.sizes[-1])
        return {
            "rule": self._rule_name,
            "optimizer": label_of(self.settings["optimizer"]),
            "lr": self.settings["lr"],
            "sizes": self.sizes,
            "steps": self.steps,
            "seeds": self.seeds,
            "plan": _plan_hash(applied) if applied else "",
            **records.versions(),
        }


def _plan_hash(plan: Plan) -> str:
    """Return a hash that is the same for the same plan."""
    text = json.dumps(as_record(plan), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- models of different depth --------------------------------------------------------------------


def _shared_names(small: nn.Module, large: nn.Module) -> Callable[[str], str]:
    """Return the name that a module or tensor shares with its counterparts in other layers.

    `layers.7.mlp` is called `layers.*.mlp` in all models. Only numbers that count layers are
    replaced. Those of a sequence that is as long in the deep model as in the shallow one
    (`layers.7.mlp.2`) name different things.
    """
    shallow = _lengths_of_sequences(small)
    deep = _lengths_of_sequences(large)
    stacks = {parent for parent, length in deep.items() if length != shallow.get(parent)}

    def key(name: str) -> str:
        parts = name.split(".")
        shared = []
        for position, part in enumerate(parts):
            counts_layers = part.isdigit() and stack_of(".".join(parts[:position])) in stacks
            shared.append("*" if counts_layers else part)
        return ".".join(shared)

    return key


def _lengths_of_sequences(model: nn.Module) -> Mapping[str, int]:
    """Return how far the numbers of every sequence go, by the name that its counterparts share."""
    lengths: dict[str, int] = {}
    for name in (*dict(model.named_modules()), *dict(model.named_parameters())):
        parts = name.split(".")
        for position, part in enumerate(parts):
            if part.isdigit():
                parent = stack_of(".".join(parts[:position]))
                lengths[parent] = max(lengths.get(parent, 0), int(part) + 1)
    return lengths
