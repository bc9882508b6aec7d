"""The runs of a coordinate check: what `build` gives at every size and seed, trained and recorded.

Models are looked at before anything is trained, so that what cannot work is said at once. Later
failures cost one run each: what was measured stays.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import nn
from torch.optim import Optimizer

from orderone import rules
from orderone.core.exact import count
from orderone.measure import records
from orderone.measure.laws import law_of
from orderone.measure.observations import Observations
from orderone.measure.pooling import pooled
from orderone.measure.ratios import Layer, layers_of, observe
from orderone.measure.recording import DEFAULT, QUANTITIES
from orderone.measure.runs import Progress, Run, Setup, model_of, read_setup, run_all, train
from orderone.observe.batches import Loss, call_inputs, draws_randomly, on_device
from orderone.observe.inventory import read_patterns, shapes_of
from orderone.optimizers.table import label_of
from orderone.planning import BrokenRatios, Plan
from orderone.planning.build import Family, family
from orderone.planning.file import as_record
from orderone.planning.schedule import check_ratios
from orderone.seeding import set_seed


@dataclass
class Study:
    build: Callable[[int], Any]
    axis: str
    sizes: list[int]
    asked: dict[str, Any]  # of `plan`
    batches: list[Any]
    loss: Loss | None
    seeds: list[int]
    steps: int
    base: Any = None
    scheduler: Callable[[Optimizer], Any] | None = None
    frozen: Any = ()  # patterns of tensors that are not trained on purpose
    notes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # notes that keep a check from passing
    schedule: str = ""  # what is wrong with it
    interrupted: bool = False
    first_step: int = 0  # that follows the law of the optimizer
    plans: dict[int, Plan] = field(default_factory=dict)  # what the rule asks at each size
    _built: dict[tuple[int, int], Any] = field(default_factory=dict)
    _measurable: set[str] | None = None
    _penalized: bool = False  # weight decay is added to gradients, which are random
    _quantities: tuple[str, ...] = QUANTITIES

    def __post_init__(self) -> None:
        if isinstance(self.build, nn.Module) or not callable(self.build):
            raise ValueError(
                f"build: expected a function of the {self.axis}, got {type(self.build).__name__}"
            )
        if len(self.batches) < self.steps:
            self.troubles.append(f"batches ran out after {len(self.batches)} of {self.steps} steps")
        self._look()

    # --- before -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Build the extremes, read what they are, and plan them."""
        ends = self.sizes[0], self.sizes[-1]
        for size in ends:
            self._built[size, self.seeds[0]] = self._make(size)
        self.small, self.large = (model_of(self._built[size, self.seeds[0]]) for size in ends)
        self.frozen = read_patterns(self.frozen, self.large, "frozen")
        self._read_own(self._built[ends[1], self.seeds[0]])
        if self.axis == "depth":
            self.observations = Observations(self.axis, pooled(self.small, self.large))
        else:
            self.observations = Observations(self.axis, str)
        self.no_growth = shapes_of(self.small) == shapes_of(self.large)
        self.family = self._family()
        if self.family is not None:
            self.plans = {
                ends[0]: self.family.plan(self.small),
                ends[1]: self.family.plan(self.large),
            }

    def _make(self, size: int, seed: int | None = None) -> Any:
        set_seed(self.seeds[0] if seed is None else seed)
        return self.build(size)

    def _read_own(self, built: Any) -> None:
        """What comes with an optimizer is judged in whatever gauge it is; a plan says its own."""
        first, *own = built if isinstance(built, (tuple, list)) else (built,)
        self.own = bool(own)
        self.to_plan = isinstance(first, nn.Module) and not own
        self.given = first if isinstance(first, Plan) else None
        if own and isinstance(self._built[self.sizes[0], self.seeds[0]], (tuple, list)):
            self._read_law()
        if self.given:
            s = self.given.settings
            self.asked |= {"gauge": s.gauge, "depth": s.depth, "lr": s.lr}
            self.asked["optimizer"] = self.given.user_class or s.optimizer
            if self.asked["rule"] is None and s.rule in rules.names():
                self.asked["rule"] = s.rule
        if self.asked["rule"] is None:
            self.asked["rule"] = "mup"

    def _read_law(self) -> None:
        """Of the optimizer, as the smallest model has it: looking costs a few steps."""
        _, *own = self._built[self.sizes[0], self.seeds[0]]
        law = law_of(self.small, own[0] if own else None, self.asked["optimizer"], self.steps)
        self.asked["optimizer"] = law.name
        self.first_step = law.begins
        self.notes += [law.note] if law.note else []
        self.troubles += [law.trouble] if law.trouble else []

    def _family(self) -> Family | None:
        if self.base is None:
            base = self.small
        elif isinstance(self.base, nn.Module):
            base = self.base
        else:
            base = model_of(self._make(count(self.base, "base")))
        try:
            return family(self.large, base, **{"inputs": self._inputs, **self.asked})
        except ValueError as error:
            if self.to_plan:
                raise
            self.notes.append(f"no predictions for tensors: {error}")
            return None

    @property
    def _inputs(self) -> Any:
        return on_device(call_inputs(self.batches[0]), self.large)

    @cached_property
    def fixed(self) -> bool:
        """All batches are one, and passes on it draw no random numbers: training shows the changes
        too."""
        same = all(batch is self.batches[0] for batch in self.batches)
        return same and not draws_randomly(self.small, on_device(self.batches[0], self.small))

    # --- running ----------------------------------------------------------------------------------

    def run(self, progress: Progress | None) -> None:
        troubles, self.interrupted = run_all(self.sizes, self.seeds, self._run, self.axis, progress)
        self.troubles += troubles

    def _run(self, size: int, seed: int) -> None:
        built = self._built.pop((size, seed), None)
        built = self._make(size, seed) if built is None else built
        setup = read_setup(built, lambda model: self._plan(model, size), self.scheduler)
        self._check_schedule(setup)
        first = seed == self.seeds[0]  # one seed is enough for what is not random, or only explains
        layers = self._layers(setup.model) if first else ()
        run = train(
            setup,
            self.batches,
            self.loss,
            Run(size, seed),
            self.fixed,
            decay=first or self._penalized,
            layers=layers,
            quantities=self._quantities,
        )
        self._penalized |= bool(run.penalties)
        if not any(
            quantity == "scores" for _, _, quantity, _ in run.rows
        ):  # no attention: no need to listen for it
            self._quantities = DEFAULT
        if run.ended:
            self.troubles.append(f"{self.axis} {size}, seed {seed}: {run.ended}")
        for remark in run.remarks:
            self._remark(remark)
        self.observations.add(run)

    def _remark(self, told: str) -> None:
        if told not in self.notes:
            self.notes.append(told)

    def _layers(self, model: nn.Module) -> list[Layer]:
        """Matrices whose alignment can be measured: applied by modules of their own, to enough
        tokens."""
        if self.family is None or self.axis == "depth":
            return []
        found = layers_of(model, {row.name: row.role for row in self.plans[self.sizes[-1]].rows})[0]
        if self._measurable is None:
            inputs = observe(model, found, {"": on_device(self.batches[0], model)}).inputs[""]
            self._measurable = {
                x.name for x in found if x.name in inputs and x.is_measurable(inputs[x.name])
            }
        return [layer for layer in found if layer.name in self._measurable]

    def _plan(self, model: nn.Module, size: int) -> Plan:
        assert self.family is not None  # or else its error was raised
        if size not in self.plans:
            self.plans[size] = self.family.plan(model)
        return replace(
            self.plans[size], model=model, planned={}
        )  # just built: nothing to compare its sizes with

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
            self._remark(str(error))

    # --- what it was about ------------------------------------------------------------------------

    @property
    def undone(self) -> tuple[str, ...]:
        """What the plan that was applied leaves to the model's own code."""
        applied = self.given or (self.plans.get(self.sizes[-1]) if self.to_plan else None)
        if applied:
            return tuple(f"at {self.axis} {self.sizes[-1]}, {told}" for told in applied.undone)
        return ()

    @property
    def rule(self) -> str:
        rule = self.asked["rule"]
        return rule if isinstance(rule, str) else rule.name

    def provenance(self) -> dict[str, Any]:
        # what was applied
        if self.own:
            plan = None
        else:
            plan = self.given or self.plans.get(self.sizes[-1])
        return {
            "rule": self.rule,
            "optimizer": label_of(self.asked["optimizer"]),
            "lr": self.asked["lr"],
            "sizes": self.sizes,
            "steps": self.steps,
            "seeds": self.seeds,
            "plan": plan_hash(plan) if plan else "",
            **records.versions(),
        }


def plan_hash(plan: Plan) -> str:
    """The same for the same plan: what the records belong to."""
    text = json.dumps(as_record(plan), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
