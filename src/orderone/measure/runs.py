"""One short training, recorded: what `build` gives at one size, trained for a few steps under a
probe."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from orderone.measure.alignment_result import TRAINING as TOKENS
from orderone.measure.decay import decay_of
from orderone.measure.ratios import Layer, Ratio, State, observe, ratios, reading, weights_of
from orderone.measure.recording import QUANTITIES, TRAINING, Probe
from orderone.observe.batches import Loss, call_inputs, loss_of, on_device
from orderone.observe.inventory import inventory, unwrap
from orderone.observe.moments import Moments
from orderone.planning import Plan
from orderone.planning.param_groups import fused_options

SAME = 1e-3  # rates that differ by less are the same
WANTED = (
    "build: expected a function of the size that returns an nn.Module, a plan, or (module,"
    " optimizer) if they are scaled already; got {}"
)
Planner = Callable[[nn.Module], Plan]
Progress = Callable[[int, int, str], None]


@dataclass
class Setup:
    """A model ready to train. `plan` is what scaled it, if that was ours to know."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Any = None
    plan: Plan | None = None


@dataclass
class Run:
    """What one training left: sizes by step, losses, and why it ended early, if it did."""

    size: int
    seed: int
    rows: list[tuple[int, str, str, Moments]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    same_output: dict[str, str] = field(default_factory=dict)
    rates: list[dict[str, float]] = field(default_factory=list)  # learning rates, step by step
    ratios: list[Ratio] = field(
        default_factory=list
    )  # alignment across the last step, if it was asked for
    penalties: dict[str, float] = field(
        default_factory=dict
    )  # of weight decay that is added to gradients
    steps: int = 0  # completed ones
    ended: str = ""
    remarks: list[str] = field(default_factory=list)


def run_all(
    sizes: list[int],
    seeds: list[int],
    action: Callable[[int, int], None],
    axis: str,
    progress: Progress | None = None,
) -> tuple[list[str], bool]:
    """All sizes for one seed, then for the next: whoever interrupts has something to fit. The first
    run may fail; a later one costs itself only. Returns what went wrong, and whether it was
    interrupted."""
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


def read_setup(built: Any, planner: Planner, scheduler: Callable[[Optimizer], Any] | None) -> Setup:
    """A module (to be planned), a plan, or a module or plan with its own optimizer and, at most, a
    scheduler."""
    built, *own = built if isinstance(built, (tuple, list)) and built else (built,)
    if isinstance(built, nn.Module) and not own:
        built = planner(built)
    if isinstance(built, Plan) and not built.applied:
        built.apply()
    plan = built if isinstance(built, Plan) else None
    model = plan.bound() if plan else built
    if (
        not isinstance(model, nn.Module)
        or (own and not isinstance(own[0], Optimizer))
        or len(own) > 2
    ):
        raise ValueError(WANTED.format(", ".join(type(x).__name__ for x in (built, *own))))
    optimizer = own[0] if own else _optimizer(plan)
    if len(own) == 2:
        made = own[1]
    elif scheduler:
        made = scheduler(optimizer)
    else:
        made = None
    return Setup(model, optimizer, made, plan)


def model_of(built: Any) -> nn.Module:
    """The module in what `build` returned."""
    first = built[0] if isinstance(built, (tuple, list)) and built else built
    model = first.bound() if isinstance(first, Plan) else first
    if not isinstance(model, nn.Module):
        raise ValueError(WANTED.format(type(first).__name__))
    return unwrap(model)


def _optimizer(plan: Plan | None) -> Optimizer:
    assert plan is not None  # a module without an optimizer was planned
    return plan.optimizer(**fused_options(plan))


def train(
    setup: Setup,
    batches: list[Any],
    loss: Loss | None,
    run: Run,
    fixed: bool,
    decay: bool = False,
    layers: Sequence[Layer] = (),
    quantities: tuple[str, ...] = QUANTITIES,
) -> Run:
    """`fixed`: all batches are one, and passes on it draw no random numbers, so that training shows
    the changes too. `decay`: measure the weight decay by itself. `layers`: whose alignment to
    measure across the last step."""
    model = setup.model
    if fixed:
        batches = [on_device(batches[0], model)] * len(batches)
    else:
        batches = [on_device(b, model) for b in batches]
    if decay:
        try:
            found = decay_of(model, setup.optimizer)
            run.rows += [(0, name, "decay", moments) for name, moments in found.fractions.items()]
            run.penalties = found.penalties
        except (
            Exception
        ) as error:  # some modules and optimizers refuse to be copied, in ways of their own
            run.remarks.append(f"weight decay was not measured ({type(error).__name__}: {error})")
    probe = Probe(
        model, setup.optimizer, TRAINING if fixed else call_inputs(batches[0]), quantities
    )
    states: list[State] = []  # before and after the last step
    look = partial(_looking, model, layers, batches[0], fixed, states)
    with probe.watch():
        for number, batch in enumerate(batches, 1):
            with look() if number == len(batches) else nullcontext():
                if not step(setup, batch, loss, run):
                    break
        if not run.ended:
            with look():
                if fixed:
                    probe.last_pass(lambda: loss_of(model, batches[0], loss))
            run.ratios = list(ratios(layers, *states)) if layers else []
    run.rows += probe.rows
    run.same_output = probe.same_output
    return run


@contextmanager
def _looking(
    model: nn.Module, layers: Sequence[Layer], batch: Any, fixed: bool, states: list[State]
) -> Iterator[None]:
    """Adds what the model is when the context opens: if `fixed`, from the pass inside it, otherwise
    from one of its own."""
    if not layers:
        yield
    elif fixed:
        weights = weights_of(layers)
        with reading(model, layers) as inputs:
            yield
        states.append(State(weights, {TOKENS: inputs}))
    else:
        states.append(observe(model, layers, {TOKENS: batch}))
        yield


def step(setup: Setup, batch: Any, loss: Loss | None, run: Run) -> bool:
    """One update, unless the loss is not finite."""
    value = loss_of(setup.model, batch, loss)
    if not value.requires_grad:
        raise ValueError(
            "loss: expected one that depends on what is trained; is it detached, or is everything"
            " frozen?"
        )
    run.losses.append(number := float(value.detach()))
    if not math.isfinite(number):
        run.ended = f"the loss is {number} at step {run.steps}"
        return False
    setup.optimizer.zero_grad(set_to_none=True)
    value.backward()
    run.rates.append(_rates(setup))
    setup.optimizer.step()
    if isinstance(setup.scheduler, ReduceLROnPlateau):
        setup.scheduler.step(number)
    elif setup.scheduler is not None:
        setup.scheduler.step()
    run.steps += 1
    return True


def _rates(setup: Setup) -> dict[str, float]:
    names = {id(item.tensor): name for name, item in inventory(setup.model).items()}
    return {
        names[id(p)]: float(group["lr"])
        for group in setup.optimizer.param_groups
        for p in group["params"]
        if id(p) in names and "lr" in group
    }


def ratios_kept(rates: list[dict[str, float]]) -> bool:
    """Whether all learning rates change by the same factor from step to step."""
    started = [now for now in rates if any(now.values())]
    for now in started[1:]:
        factors = [now[name] / rate for name, rate in started[0].items() if rate and name in now]
        if max(factors, default=1.0) > (1 + SAME) * min(factors, default=1.0):
            return False
    return True
