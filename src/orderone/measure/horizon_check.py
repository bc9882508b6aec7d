"""`coord_check(batch_sizes=...)` and `coord_check(tokens=...)`: axes of the training.

All sizes train the same model. Along the batch size they train on the same samples, in batches of
B: the largest batch makes `steps` steps, a batch of half its size twice as many. Along the tokens
the batch stays, and the number of steps grows like the tokens D. After n steps of a normalized
update, gradients of which noise dominates have moved weights by

    noise    lr n^1/2                drift    lr n B^1/2

and those of SGD by lr n^1/2 B^-1/2 and lr n. With lr = B^e or D^e, the change of every output is

    batch, n = 1/B     both B^(e - 1/2), of order one for e = 1/2; SGD: B^(e - 1), e = 1
    tokens, n = D      between D^(e + 1/2) (noise) and D^(e + 1) (drift); the prediction is their
                       middle, or the nearer end for exponents outside this range

RMSprop starts its average of squares at zero and does not correct this: step t has the rate
lr_t = lr (1 - alpha^t)^-1/2. All steps together then move weights by (sum lr_t^2)^1/2 (noise) and
sum lr_t B^1/2 (drift) in place of lr n^1/2 and lr n B^1/2. While alpha^t is near 1, lr_t^2 falls
like 1/t, and its sum grows like log n: more and smaller steps over the same samples move weights
more. The prediction is the middle of both; for 24 to 96 steps, noise is B^-0.10 and drift B^-0.05,
and both vanish for long trainings.

Where the signal g is not small beside the noise (S / B)^1/2 of a gradient, an optimizer that
divides by the size of gradients moves weights by g (S + B g^2)^-1/2 instead of g S^-1/2, and the
change of outputs has the exponent -1/2 B g^2 / (S + B g^2) more: 0 far below the critical batch,
-1/2 far beyond it. `benchmarks/batch_signal.py` predicts it from gradients of single samples.

Learning rates, lr x weight_decay and 1 - beta are known numbers and are compared exactly with those
of the rule. A first update has the size of the learning rate; for SGD, times the measured gradient.
Gradients follow B^-1/2 while noise dominates. Where they do not, the batch is beyond the critical
one, and a note says so.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any

from torch import Tensor, nn

from orderone.core.errors import InputError, with_code
from orderone.core.exact import count
from orderone.loading.examples import read_examples
from orderone.measure import records
from orderone.measure.check import Check
from orderone.measure.fit import Fit
from orderone.measure.inputs import Progress, SizesInput
from orderone.measure.judge.known_numbers import known_line, slope
from orderone.measure.judge.resolution import coarsest, if_resolved, vanishing_gradients
from orderone.measure.judge.thresholds import EXACT, FEW
from orderone.measure.judge.verdict import (
    Expected,
    Finding,
    Judgement,
    Verdict,
    verdict_on_fit,
)
from orderone.measure.noise_scale import samples_in
from orderone.measure.observations import Line, Observations
from orderone.measure.recording import Probe
from orderone.measure.runs import (
    Run,
    Training,
    cast_batches,
    in_precision,
    model_of,
    read_setup,
    run_all,
)
from orderone.observe.batches import Batch, Loss, call_inputs, on_device
from orderone.observe.inventory import shapes_of
from orderone.observe.precision import Precision
from orderone.observe.quantities import Quantity
from orderone.optimizers.table import label_of, record_named
from orderone.planning import Plan, Row, plan
from orderone.rules.axes import Memory
from orderone.rules.composition import find_composition
from orderone.seeding import set_seed
from orderone.torch_compat import tree_map

BATCH = "batch size"
TOKENS = "token count"
NOISE_OR_DRIFT = 0.25  # distance of both exponents of tokens from their middle
NOISY = -0.25  # exponent of gradients above which the signal dominates
UNCORRECTED = "alpha"  # setting of RMSprop, whose average of squares starts at zero
LONG = 4  # trainings of this many times the memory of a momentum are long
_RECORDED = (Quantity.OUTPUT, Quantity.CHANGE, Quantity.GRADIENT, Quantity.UPDATE)


@dataclass(frozen=True)
class HorizonStudy:
    """A check along the batch size or the tokens: `run` returns the result."""

    axis: str
    sizes: tuple[int, ...]
    build: Callable[..., Any]
    base: int | None  # size at which settings were tuned; by default the smallest
    settings: Mapping[str, Any]  # keyword arguments of `plan`
    data: object
    batch_size: object
    collate_fn: object
    loss: Loss | None
    seeds: tuple[int, ...]
    steps: int
    scheduler: Any
    precision: Precision
    confidence: float

    def _too_short(self, memory: float) -> str:
        text = (
            f"the momentum of {label_of(self._optimizer)} averages over {memory:.4g} steps, and"
            f" the training at {self.axis} {self._size_of_shortest} has only {self._shortest};"
            f" the rule needs {LONG * memory:.4g} or more ({LONG} times the average). Train for"
            " more steps"
        )
        return with_code(text, "training-too-short")

    def run(self, progress: Progress | None) -> Check:
        """Train all sizes and seeds, and judge them."""
        self._check_rule()
        self._check_build()
        runs: list[Run] = []

        def train(size: int, seed: int) -> None:
            runs.append(self._train(size, seed))

        troubles, interrupted = run_all(self.sizes, self.seeds, train, self.axis, progress)
        ended = [
            with_code(f"{self.axis} {run.size}, seed {run.seed}: {run.ended}", "run-diverged")
            for run in runs
            if run.ended
        ]
        troubles = [*ended, *troubles]
        observations = Observations(self.axis, lambda name: name, tuple(runs))
        lines = [*self._known_numbers(runs), *self._fits(observations)]
        memory = max((_memory(run) for run in runs), default=0.0)
        if self._momentum_is_fixed and self._shortest < LONG * memory:
            troubles.append(self._too_short(memory))
            lines = [_inconclusive(line) for line in lines]
        verdict = self._verdict(lines, troubles)
        notes = (*troubles, *self._notes(lines))
        causes = [f"{line.module or 'the model'}: {line.cause}" for line in lines if line.cause]
        if verdict == Verdict.PASS:
            causes = []
        return Check(
            observations,
            tuple(lines),
            verdict,
            tuple(dict.fromkeys(causes))[:3],
            notes,
            self._provenance,
            interrupted,
        )

    # --- training ---------------------------------------------------------------------------------

    def _check_rule(self) -> None:
        composed = find_composition(self.settings.get("rule"))
        rule = self.settings.get("horizon", "sde")
        if composed is not None and composed.horizon is not None:
            rule = composed.horizon
        if rule is None:
            raise InputError(
                f"horizon: horizon=None means that no setting follows the {self.axis}, so there is"
                " nothing to check; pass horizon='sde' or 'power'",
                "axis-without-rule",
                argument="horizon",
            )

    def _built(self, size: int, seed: int) -> Any:
        set_seed(seed)
        try:
            signature(self.build).bind()
        except TypeError:
            built = self.build(size)
        else:
            built = self.build()
        in_precision(built, self.precision)
        return built

    def _check_build(self) -> None:
        """Raise an InputError if `build` returns models of different shapes."""
        small = model_of(self._built(self.sizes[0], self.seeds[0]))
        large = model_of(self._built(self.sizes[-1], self.seeds[0]))
        if shapes_of(small) != shapes_of(large):
            raise InputError(
                f"build: the shapes of the model depend on the {self.axis}; expected the same model"
                " at every size, from a function without arguments, such as lambda: build(256)",
                "build-arguments",
                argument="build",
            )

    def _train(self, size: int, seed: int) -> Run:
        built = self._built(size, seed)
        setup = read_setup(built, lambda module: self._plan(module, size), self.scheduler)
        training = Training(setup, self.loss, self.precision)
        batches = self._batches(size)
        training.choose_scale(on_device(batches[0], setup.model))
        fixed = on_device(call_inputs(self._examples[0]), setup.model)
        probe = Probe(setup.model, setup.optimizer, fixed, _RECORDED, precision=self.precision)
        with probe.watch():
            for batch in batches:
                if not training.step(on_device(batch, setup.model)):
                    break
        rows = []
        for step, name, quantity, moments in probe.rows:
            if quantity == Quantity.CHANGE and step == len(batches):
                rows.append((self.steps, name, quantity, moments))
            elif quantity != Quantity.CHANGE and step == 0:
                rows.append((step, name, quantity, moments))
            if quantity == Quantity.GRADIENT:  # of all steps together
                rows.append((self.steps, name, quantity, moments))
        return Run(
            size=size,
            seed=seed,
            rows=tuple(rows),
            losses=tuple(training.losses),
            rates=tuple(training.rates[:1]),
            settings=training.settings,
            steps=self.steps,
            ended=training.ended,
        )

    @cached_property
    def _optimizer(self) -> Any:
        """The optimizer of the plans: that of `build`, if it returns one."""
        built = self._built(self.sizes[0], self.seeds[0])
        if isinstance(built, (tuple, list)) and len(built) > 1:
            return type(built[1])
        return self.settings["optimizer"]

    def _plan(self, model: nn.Module, size: int) -> Plan:
        if self.base is None:
            base = self.sizes[0]
        else:
            base = self.base
        settings = {**self.settings, "optimizer": self._optimizer}
        if self.axis == BATCH:
            settings["batch"] = (base, size)
        else:
            settings["batch"] = settings.get("batch") or (1, 1)
            settings["tokens"] = (base, size)
        set_seed(self.seeds[0])
        return plan(model, base=model_of(self._built(size, self.seeds[0])), probe=False, **settings)

    @cached_property
    def _examples(self) -> list[Batch]:
        """Batches of the largest size, or of all steps."""
        if self.axis == BATCH:
            wanted = self.steps
            size = self.batch_size or self.sizes[-1]
        else:
            wanted = self._steps_at(self.sizes[-1])
            size = self.batch_size
        if _takes_batch_size(self.data):
            takes_size = size
        else:
            takes_size = None
        examples = read_examples(self.data, wanted, takes_size, self.collate_fn).batches
        examples = cast_batches(examples, self.precision)
        if all(batch is examples[0] for batch in examples) and wanted > 1:
            raise InputError(
                "batches: expected different batches for different steps, got one for all, whose"
                " gradients have no noise from step to step; pass a list, a data set or a function",
                "noise-needs-passes",
                argument="batches",
            )
        if len(examples) < wanted:
            raise InputError(
                f"batches: expected {wanted} batches, got {len(examples)}; pass more, or fewer"
                " steps",
                "too-few-batches",
                argument="batches",
            )
        if self.axis == BATCH and {samples_in(batch) for batch in examples} != {self.sizes[-1]}:
            raise InputError(
                f"batches: expected {self.sizes[-1]} samples in each, the largest of batch_sizes;"
                f" got {samples_in(examples[0])}. Smaller batches are parts of them",
                argument="batches",
            )
        return examples

    def _steps_at(self, size: int) -> int:
        if self.axis == BATCH:
            return self.steps * self.sizes[-1] // size
        return self.steps * size // self.sizes[0]

    def _batches(self, size: int) -> list[Batch]:
        if self.axis == TOKENS:
            return self._examples[: self._steps_at(size)]
        batches: list[Batch] = []
        for example in self._examples:
            for start in range(0, self.sizes[-1], size):
                batches.append(_part(example, start, start + size, self.sizes[-1]))
        return batches

    # --- judging ----------------------------------------------------------------------------------

    @cached_property
    def _plans(self) -> tuple[Plan, Plan]:
        """Requirements of the rule at the smallest and the largest size."""
        seed = self.seeds[0]
        small, large = self.sizes[0], self.sizes[-1]
        return (
            self._plan(model_of(self._built(small, seed)), small),
            self._plan(model_of(self._built(large, seed)), large),
        )

    def _predicted(self, name: str, value: Callable[[Row], float]) -> float:
        small, large = (value(made[name]) for made in self._plans)
        return slope({self.sizes[0]: small, self.sizes[-1]: large})

    def _known_numbers(self, runs: Sequence[Run]) -> Iterator[Judgement]:
        """Judge learning rates, lr x weight_decay and betas."""
        first = {run.size: run for run in runs if run.seed == self.seeds[0] and run.rates}
        if len(first) < 2:
            return
        for row in self._plans[0].rows:
            name = row.name
            if not row.trained or not all(name in run.rates[0] for run in first.values()):
                continue
            rates = {size: run.rates[0][name] for size, run in first.items()}
            predicted = self._predicted(name, lambda row: row.lr)
            if all(rates.values()):
                yield _known(name, Quantity.RATE, slope(rates), predicted, row.role)
            decays: dict[int, float] = {}
            for size, run in first.items():
                decays[size] = rates[size] * run.settings[name].get("weight_decay", 0.0)
            if all(decays.values()) and row.weight_decay:
                shrinkage = self._predicted(name, lambda row: row.lr * row.weight_decay)
                yield _known(name, Quantity.DECAY, slope(decays), shrinkage, row.role)
            yield from self._known_betas(name, first, row.role)

    def _known_betas(self, name: str, runs: Mapping[int, Run], role: str) -> Iterator[Judgement]:
        planned = self._plans[1][name].betas
        setting = record_named(self._plans[1][name].optimizer).averages
        if planned is None or setting is None:
            return
        if len(planned) > 1:
            key = f"{setting}[{len(planned) - 1}]"
        else:
            key = setting
        fresh: dict[int, float] = {}
        for size, run in runs.items():
            fresh[size] = 1 - run.settings[name].get(key, math.nan)
        if not any(math.isnan(value) for value in fresh.values()):
            predicted = self._predicted(name, _fresh)
            yield _known(name, Quantity.SETTINGS, slope(fresh), predicted, role)

    def _fits(self, observations: Observations) -> Iterator[Judgement]:
        vanishing = vanishing_gradients(observations)
        last = self.steps
        wanted = [(Quantity.UPDATE, 0), (Quantity.GRADIENT, last), (Quantity.CHANGE, last)]
        fits = dict(observations.fits([*wanted, (Quantity.GRADIENT, 0)], self.confidence))
        for (name, quantity, step), fit in fits.items():
            if name in vanishing or (quantity, step) not in wanted:
                continue
            gradient = fits.get((name, Quantity.GRADIENT, 0))
            expected = self._expected(name, quantity, fit, gradient)
            if expected is not None:
                finding = verdict_on_fit(fit, expected, self.axis)
                line = (name, quantity, step)
                finding = if_resolved(observations, line, finding, self._coarsest)
                yield self._judgement(line, fit, expected, finding)

    def _expected(
        self, name: str, quantity: Quantity, fit: Fit, gradient: Fit | None
    ) -> Expected | None:
        if quantity == Quantity.CHANGE:
            exponent = self._change
            distance = fit.exponent - exponent
            if self.axis == TOKENS and abs(distance) > NOISE_OR_DRIFT:
                exponent += math.copysign(NOISE_OR_DRIFT, distance)
            return Expected(exponent, two_sided=True)
        row = self._plans[1][name]
        if quantity == Quantity.GRADIENT:
            if self.axis == TOKENS:  # all sizes begin with the same batch
                return Expected(0.0, two_sided=True, role=row.role, soft=True)
            return Expected(-0.25, two_sided=True, role=row.role, soft=True)
        law = record_named(row.optimizer).update_law
        if law.gradient and gradient is None:
            return None
        exponent = self._predicted(name, lambda row: row.lr)
        if record_named(row.optimizer).averages == UNCORRECTED:
            # RMSprop starts its average of squares at zero and does not correct this
            exponent -= 0.5 * self._predicted(name, _fresh)
        if law.gradient and gradient is not None:
            exponent += float(law.gradient) * gradient.exponent
        return Expected(exponent, two_sided=True, role=row.role)

    @cached_property
    def _change(self) -> float:
        """Exponent of the change of outputs that the rule implies."""
        rows = [row for row in self._plans[0].rows if row.trained and row.lr]
        rate = self._predicted(rows[0].name, lambda row: row.lr)
        record = record_named(rows[0].optimizer)
        normalizes = record.update_law.gradient == 0
        if self.axis == BATCH and record.averages == UNCORRECTED:
            return round(self._uncorrected_change(rows[0].name), 9)
        if self.axis == BATCH:
            return round(rate - (0.5 if normalizes else 1.0), 9) + 0.0  # no negative zero
        return rate + 0.75

    def _uncorrected_change(self, name: str) -> float:
        """Return the exponent of the change of outputs, if the average of squares starts at zero
        and is not corrected: the middle of noise and drift."""
        noise: dict[int, float] = {}
        drift: dict[int, float] = {}
        for size, made in zip((self.sizes[0], self.sizes[-1]), self._plans, strict=True):
            alpha = 1 - _fresh(made[name])
            steps = range(1, self._steps_at(size) + 1)
            rates = [made[name].lr * (1 - alpha**t) ** -0.5 for t in steps]
            noise[size] = math.hypot(*rates)
            drift[size] = sum(rates) * size**0.5
        return (slope(noise) + slope(drift)) / 2

    @cached_property
    def _coarsest(self) -> float:
        built = model_of(self._built(self.sizes[0], self.seeds[0]))
        return coarsest([p.dtype for p in built.parameters()], self.precision)

    def _judgement(self, line: Line, fit: Fit, expected: Expected, finding: Finding) -> Judgement:
        name, quantity, step = line
        if len(self.sizes) < FEW and finding.verdict != Verdict.FAIL:
            cause = f"inconclusive: {len(self.sizes)} {self.axis}s; at least {FEW} are needed"
            finding = Finding(Verdict.UNCLEAR, cause)
        return Judgement(
            name,
            quantity,
            step,
            fit.exponent,
            fit.low,
            fit.high,
            expected.exponent,
            finding.verdict,
            finding.cause,
            expected.role,
            finding.reason,
        )

    @property
    def _momentum_is_fixed(self) -> bool:
        """Whether the number of steps in the optimizer's memory does not follow the rule."""
        rows = self._plans[0].rows
        return any(record_named(row.optimizer).memory == Memory.MOMENTUM for row in rows)

    @property
    def _size_of_shortest(self) -> int:
        if self.axis == BATCH:
            return self.sizes[-1]
        return self.sizes[0]

    @property
    def _shortest(self) -> int:
        return self._steps_at(self._size_of_shortest)

    def _verdict(self, lines: Sequence[Judgement], troubles: Sequence[str]) -> Verdict:
        if any(line.verdict == Verdict.FAIL for line in lines):
            return Verdict.FAIL
        changes = [line for line in lines if line.quantity == Quantity.CHANGE]
        clear = [line for line in changes if line.verdict == Verdict.PASS]
        if troubles or len(clear) <= len(changes) / 2:
            return Verdict.UNCLEAR
        return Verdict.PASS

    def _notes(self, lines: Sequence[Judgement]) -> list[str]:
        """Return a note if gradients are not dominated by noise."""
        if self.axis == TOKENS:
            return []
        exponents = [line.exponent for line in lines if line.quantity == Quantity.GRADIENT]
        if not exponents or sorted(exponents)[len(exponents) // 2] < NOISY:
            return []
        note = (
            "most gradients hardly shrink with the batch size: noise does not dominate them at"
            " these sizes, and the rule for the batch size does not hold beyond the critical batch"
        )
        return [with_code(note, "beyond-critical-batch")]

    @property
    def _provenance(self) -> dict[str, object]:
        return {
            "rule": self._plans[1].settings.rule,
            "optimizer": label_of(self._optimizer),
            "lr": self.settings["lr"],
            "sizes": list(self.sizes),
            "steps": self.steps,
            "seeds": list(self.seeds),
            "precision": self.precision.name,
            "plan": "",
            **records.VERSIONS,
        }


def read_horizon_sizes(values: SizesInput, name: str, axis: str) -> tuple[int, ...]:
    """Return at least two sizes; each must be a whole fraction of the largest (batch) or a whole
    multiple of the smallest (tokens)."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InputError(
            f"{name}: expected several sizes such as [16, 32, 64, 128], got {values!r}",
            "wrong-type",
            argument=name,
        )
    sizes = tuple(sorted({count(size, name) for size in values}))
    if len(sizes) < 2:
        raise InputError(
            f"{name}: expected at least two sizes to fit an exponent, got {list(sizes)}",
            argument=name,
        )
    divides = all(sizes[-1] % size == 0 for size in sizes)
    if axis == TOKENS:
        divides = all(size % sizes[0] == 0 for size in sizes)
    if not divides:
        if axis == BATCH:
            whole = "divide the largest"
        else:
            whole = "be multiples of the smallest"
        raise InputError(
            f"{name}: expected sizes that {whole}, such as [16, 32, 64, 128]; got {list(sizes)}",
            argument=name,
        )
    return sizes


def _takes_batch_size(data: object) -> bool:
    """Return whether data are in a form for which the batch size must be passed."""
    from torch.utils.data import DataLoader, Dataset

    if isinstance(data, DataLoader):
        return False
    if isinstance(data, Dataset):
        return True
    if not callable(data):
        return False
    try:
        return "batch_size" in signature(data).parameters
    except (TypeError, ValueError):
        return False


def _part(batch: Batch, start: int, stop: int, samples: int) -> Batch:
    """Return some samples of a batch."""

    def part(x: object) -> object:
        if isinstance(x, Tensor) and x.dim() and x.shape[0] == samples:
            return x[start:stop]
        return x

    return tree_map(part, batch)


def _memory(run: Run) -> float:
    """Return the longest memory of momenta in steps."""
    longest = 0.0
    for settings in run.settings.values():
        for name in ("momentum", "betas[0]", "betas[1]"):
            # averages of squares of Adam follow the rule; those of a momentum are its betas
            beta = settings.get(name, 0.0)
            if name == "momentum" or "eps" not in settings:
                longest = max(longest, 1 / (1 - beta) if 0 < beta < 1 else 0.0)
    return longest


def _inconclusive(line: Judgement) -> Judgement:
    """Return a failed change of outputs as UNCLEAR."""
    if line.quantity != Quantity.CHANGE or line.verdict != Verdict.FAIL:
        return line
    cause = f"{line.cause}; but the training is short compared with the average of the momentum"
    return replace(line, verdict=Verdict.UNCLEAR, cause=cause)


def _fresh(row: Row) -> float:
    """Return 1 - beta of the average of squares."""
    betas = row.betas or record_named(row.optimizer).betas
    assert betas is not None
    return 1 - betas[-1]


def _known(
    name: str, quantity: Quantity, exponent: float, predicted: float, role: str
) -> Judgement:
    """Judge a number that is known without measurement."""
    verdict = Verdict.PASS
    cause = ""
    if abs(exponent - predicted) > EXACT:
        verdict = Verdict.FAIL
        cause = f"{quantity.value} has the exponent {exponent:+z.2f}; expected {predicted:+z.2f}"
    return known_line(name, quantity, exponent, predicted, verdict, cause, role)
