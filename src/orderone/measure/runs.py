"""Short recorded trainings: the model that `build` gives at one size, trained under a probe."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from orderone.core.exact import count
from orderone.measure.alignment_ratios import (
    TRAINING as TRAINING_TOKENS,
)
from orderone.measure.alignment_ratios import (
    Layer,
    Ratio,
    State,
    observe,
    ratios,
    reading,
    weights_of,
)
from orderone.measure.inputs import (
    Built,
    Progress,
    Scheduler,
    SeedsInput,
    SizesInput,
)
from orderone.measure.optimizer_steps import Decay, decay_of
from orderone.measure.recording import QUANTITIES, TRAINING, Probe
from orderone.observe.batches import Batch, Loss, call_inputs, loss_of, on_device
from orderone.observe.inventory import inventory, unwrap
from orderone.observe.quantities import Quantity
from orderone.observe.step_recorder import Row
from orderone.planning import Plan
from orderone.planning.plan import fused_options

SAME = 1e-3  # rates that differ by less are the same
WANTED = (
    "build: expected a function of the size that returns an nn.Module, a plan, or (module,"
    " optimizer) if they are scaled already; got {}"
)


# --- what users ask for ---------------------------------------------------------------------------


def read_sizes(widths: SizesInput | None, depths: SizesInput | None) -> tuple[str, list[int]]:
    """Return the axis (width or depth), and at least two sizes along it."""
    if (widths is None) == (depths is None):
        raise ValueError(
            "widths: expected widths=[64, 128, ...] or depths=[2, 4, ...], one of the two"
        )
    if depths is None:
        axis = "width"
        values = widths
    else:
        axis = "depth"
        values = depths
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError(
            f"{axis}s: expected several sizes such as [64, 128, 256, 512], got {values!r}"
        )
    assert values is not None  # one of the two was passed
    sizes = sorted({count(size, f"{axis}s") for size in values})
    if len(sizes) < 2:
        raise ValueError(
            f"{axis}s: expected at least two different sizes to fit an exponent to, got {sizes}"
        )
    return axis, sizes


def read_seeds(seeds: SeedsInput) -> list[int]:
    """Return the seeds, of which users pass the number or the values."""
    if isinstance(seeds, int) or not hasattr(seeds, "__iter__"):
        return list(range(count(seeds, "seeds")))
    values = [count(seed, "seeds", least=0) for seed in seeds]
    if not values:
        raise ValueError("seeds: expected how many, or which; got none")
    return list(dict.fromkeys(values))


@dataclass(frozen=True)
class Setup:
    """A model ready to train."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Scheduler | None = None
    plan: Plan | None = None  # what scaled the model, if that is known


def read_setup(
    built: Built,
    planner: Callable[[nn.Module], Plan],
    scheduler: Callable[[Optimizer], Scheduler] | None,
) -> Setup:
    """Make what `build` returned ready to train.

    It is a module (to be planned), a plan, or a module or plan with its own optimizer and, at most,
    a scheduler.
    """
    first, *rest = built if isinstance(built, (tuple, list)) and built else (built,)
    if isinstance(first, nn.Module) and not rest:
        first = planner(first)
    if isinstance(first, Plan):
        if not first.applied:
            first.apply()
        plan = first
        model = plan.bound()
    else:
        plan = None
        model = first
    types = ", ".join(type(part).__name__ for part in (first, *rest))
    if not isinstance(model, nn.Module) or len(rest) > 2:
        raise ValueError(WANTED.format(types))
    optimizer = rest[0] if rest else _planned_optimizer(plan)
    if not isinstance(optimizer, Optimizer):
        raise ValueError(WANTED.format(types))
    if len(rest) == 2:
        return Setup(model, optimizer, rest[1], plan)  # pyright: ignore[reportArgumentType]
    return Setup(model, optimizer, scheduler(optimizer) if scheduler else None, plan)


def _planned_optimizer(plan: Plan | None) -> Optimizer:
    assert plan is not None  # a module without an optimizer was planned
    return plan.optimizer(**fused_options(plan))


def model_of(built: Built) -> nn.Module:
    """Return the module in what `build` returned."""
    first = built[0] if isinstance(built, (tuple, list)) and built else built
    model = first.bound() if isinstance(first, Plan) else first
    if not isinstance(model, nn.Module):
        raise ValueError(WANTED.format(type(first).__name__))
    return unwrap(model)


# --- many runs ------------------------------------------------------------------------------------


def run_all(
    sizes: Sequence[int],
    seeds: Sequence[int],
    action: Callable[[int, int], None],
    axis: str,
    progress: Progress | None = None,
) -> tuple[list[str], bool]:
    """Run `action` for all sizes of one seed, then of the next; return troubles, and whether it
    was interrupted.

    In this order, an interrupted study has something to fit. An error in the first run is raised; a
    later one costs that run only.
    """
    runs = [(size, seed) for seed in seeds for size in sizes]
    troubles = []
    for done, (size, seed) in enumerate(runs):
        if progress:
            progress(done, len(runs), f"{axis} {size}, seed {seed}")
        try:
            action(size, seed)
        except KeyboardInterrupt:
            return [*troubles, f"interrupted after {done} of {len(runs)} runs"], True
        except Exception as error:
            if done == 0:
                raise
            troubles.append(f"{axis} {size}, seed {seed} failed ({type(error).__name__}: {error})")
    if progress:
        progress(len(runs), len(runs), "")
    return troubles, False


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Records of one training: sizes by step, losses, and why it ended early, if it did."""

    size: int
    seed: int
    rows: Sequence[Row] = ()
    losses: Sequence[float] = ()
    same_output: Mapping[str, str] = field(default_factory=dict)
    rates: Sequence[Mapping[str, float]] = ()  # learning rates, step by step
    ratios: Sequence[Ratio] = ()  # alignment across the last step, if it was measured
    penalties: Mapping[str, float] = field(default_factory=dict)  # decay added to gradients
    steps: int = 0  # completed ones
    ended: str = ""
    remarks: Sequence[str] = ()


class Training:
    """Train one model step by step, and keep losses and learning rates."""

    def __init__(self, setup: Setup, loss: Loss | None):
        self.setup: Setup = setup
        self.loss: Loss | None = loss
        self.losses: list[float] = []
        self.rates: list[dict[str, float]] = []  # by tensor
        self.steps: int = 0
        self.ended: str = ""  # why no more steps are possible

    def step(self, batch: Batch) -> bool:
        """Make one update; return False, without an update, if the loss is not finite."""
        loss = loss_of(self.setup.model, batch, self.loss)
        if not loss.requires_grad:
            raise ValueError(
                "loss: expected one that depends on what is trained; is it detached, or is"
                " everything frozen?"
            )
        value = float(loss.detach())
        self.losses.append(value)
        if not math.isfinite(value):
            self.ended = f"the loss is {value} at step {self.steps}"
            return False
        self.setup.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.rates.append(self._learning_rates())
        self.setup.optimizer.step()
        if isinstance(self.setup.scheduler, ReduceLROnPlateau):
            self.setup.scheduler.step(value)
        elif self.setup.scheduler is not None:
            self.setup.scheduler.step()
        self.steps += 1
        return True

    def _learning_rates(self) -> dict[str, float]:
        names = {id(item.tensor): name for name, item in inventory(self.setup.model).items()}
        rates = {}
        for group in self.setup.optimizer.param_groups:
            for tensor in group["params"]:
                if id(tensor) in names and "lr" in group:
                    rates[names[id(tensor)]] = float(group["lr"])
        return rates


def train(
    setup: Setup,
    batches: Sequence[Batch],
    loss: Loss | None,
    size: int,
    seed: int,
    *,
    fixed: bool,
    decay: bool = False,
    layers: Sequence[Layer] = (),
    quantities: tuple[Quantity, ...] = QUANTITIES,
) -> Run:
    """Train one model on all batches under a probe.

    Args:
        setup: The model, its optimizer and its scheduler.
        batches: One for each step.
        loss: As in `coord_check`.
        size, seed: Of this run.
        fixed: All batches are one, and passes on it draw no random numbers: training then shows the
            changes too.
        decay: Measure the weight decay by itself.
        layers: Those whose alignment to measure across the last step.
        quantities: Those to record.
    """
    model = setup.model
    if fixed:
        batches = [on_device(batches[0], model)] * len(batches)
    else:
        batches = [on_device(batch, model) for batch in batches]

    measured_decay = Decay()
    remarks: tuple[str, ...] = ()
    if decay:
        try:
            measured_decay = decay_of(model, setup.optimizer)
        except Exception as error:  # some modules and optimizers refuse to be copied
            remarks = (f"weight decay was not measured ({type(error).__name__}: {error})",)

    training = Training(setup, loss)
    fixed_batch = TRAINING if fixed else call_inputs(batches[0])
    probe = Probe(model, setup.optimizer, fixed_batch, quantities)
    states: list[State] = []  # before and after the last step
    measured_ratios: list[Ratio] = []
    with probe.watch():
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with _adding_state(states, model, layers, batches[0], fixed, is_last):
                if not training.step(batch):
                    break
        if not training.ended:
            with _adding_state(states, model, layers, batches[0], fixed):
                if fixed:
                    probe.last_pass(lambda: loss_of(model, batches[0], loss))
            if layers:
                measured_ratios = list(ratios(layers, *states))
    rows: list[Row] = []
    for name, moments in measured_decay.fractions.items():
        rows.append((0, name, Quantity.DECAY, moments))
    rows += probe.rows
    return Run(
        size=size,
        seed=seed,
        rows=tuple(rows),
        losses=tuple(training.losses),
        same_output=probe.same_output,
        rates=tuple(training.rates),
        ratios=tuple(measured_ratios),
        penalties=measured_decay.penalties,
        steps=training.steps,
        ended=training.ended,
        remarks=remarks,
    )


@contextmanager
def _adding_state(
    states: list[State],
    model: nn.Module,
    layers: Sequence[Layer],
    batch: Batch,
    fixed: bool,
    wanted: bool = True,
) -> Iterator[None]:
    """Add the state that the model has when the context opens, if it is wanted.

    If `fixed`, the pass inside the context shows it, otherwise a pass of its own.
    """
    if not layers or not wanted:
        yield
    elif fixed:
        weights = weights_of(layers)
        with reading(model, layers) as inputs:
            yield
        states.append(State(weights, {TRAINING_TOKENS: inputs}))
    else:
        states.append(observe(model, layers, {TRAINING_TOKENS: batch}))
        yield


def ratios_kept(rates: Sequence[Mapping[str, float]]) -> bool:
    """Return whether all learning rates change by the same factor from step to step."""
    started = [rates_now for rates_now in rates if any(rates_now.values())]
    for rates_now in started[1:]:
        factors = []
        for name, rate in started[0].items():
            if rate and name in rates_now:
                factors.append(rates_now[name] / rate)
        if max(factors, default=1.0) > (1 + SAME) * min(factors, default=1.0):
            return False
    return True
