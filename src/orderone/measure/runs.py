"""Short recorded trainings of the models that `build` returns at several sizes.

Weight decay is measured apart from training, on copies.
"""

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from orderone.core.errors import InputError, with_code, without_code
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
from orderone.measure.clipping import clipped, sizes_without_hooks
from orderone.measure.inputs import (
    BaseInput,
    BuildInput,
    Built,
    Progress,
    Scheduler,
    SeedsInput,
    SizesInput,
)
from orderone.measure.loss_dependence import unused_tensors
from orderone.measure.recording import OF_PASSES, QUANTITIES, TRAINING, Probe
from orderone.measure.spare_state import SpareState
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import Batch, Loss, call_inputs, loss_of, on_device, repeatable
from orderone.observe.inventory import inventory, tensors_of, unwrap
from orderone.observe.moments import Ledger, Moments
from orderone.observe.precision import SINGLE, Precision, cast_model, float16_parameters
from orderone.observe.quantities import Quantity
from orderone.observe.step_recorder import Row
from orderone.optimizers.muon import CONVENTION
from orderone.optimizers.muon_rates import MUON_CONVENTIONS, convert_muon_lr
from orderone.optimizers.registry import set_training_mode
from orderone.planning import Plan
from orderone.planning.build import Family, family
from orderone.planning.plan import fused_options
from orderone.planning.schedule import ZERO
from orderone.planning.supported import check_modules, check_optimizer
from orderone.seeding import set_seed
from orderone.torch_compat import local_tensor, sparse_values

# the alignment that verdicts depend on; `orderone.alignment` measures omega and u, too
ALIGNMENT = ("alpha",)
SAME = 1e-3  # learning rates with a smaller relative difference are the same
LARGEST_SCALE = 2.0**16  # of the loss in float16, as torch.amp.GradScaler starts
HEADROOM = 4.0  # gradients of later steps may grow by this factor
SAME_DIRECTION = 1e-2  # decay shrinks a weight along itself; Adam's normalized penalty does not


def _wrong_build(got: str) -> InputError:
    message = (
        "build: expected a function of the size that returns an nn.Module, a plan, or (module,"
        f" optimizer) if they are scaled already; it returned {got}"
    )
    return InputError(message, "wrong-type", argument="build")


# --- arguments of users ---------------------------------------------------------------------------


WIDTH = "width"
DEPTH = "depth"
EXPERT_COUNT = "expert count"
RANK = "rank"
REPETITION = "repetition"
# argument of the user -> axis of the study
AXES = {
    "widths": WIDTH,
    "depths": DEPTH,
    "experts": EXPERT_COUNT,
    "ranks": RANK,
    "repetitions": REPETITION,
}


def read_sizes(**arguments: SizesInput | None) -> tuple[str, list[int]]:
    """Return the axis of the one argument that is not None, and at least two sizes along it.

    The arguments are those of `AXES`.
    """
    passed = {name: values for name, values in arguments.items() if values is not None}
    if len(passed) != 1:
        axes = ", ".join(f"{name}=[...]" for name in arguments)
        got = " and ".join(passed) or "none of them"
        message = f"widths: expected sizes on one axis, one of {axes}; got {got}"
        if passed:
            code = "several-axes"
        else:
            code = "invalid-argument"
        raise InputError(message, code, argument="widths")
    [(argument, values)] = passed.items()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        message = f"{argument}: expected several sizes such as [64, 128, 256, 512], got {values!r}"
        raise InputError(message, "wrong-type", argument=argument)
    sizes = sorted({count(size, argument) for size in values})
    if len(sizes) < 2:
        message = f"{argument}: expected at least two sizes to fit an exponent, got {sizes}"
        raise InputError(message, argument=argument)
    return AXES[argument], sizes


def read_seeds(seeds: SeedsInput) -> list[int]:
    """Return a list of seeds; users pass their number or the seeds themselves."""
    if isinstance(seeds, int) or not hasattr(seeds, "__iter__"):
        return list(range(count(seeds, "seeds")))
    values = [count(seed, "seeds", least=0) for seed in seeds]
    if not values:
        message = "seeds: expected a number of seeds or a list of seeds, got an empty list"
        raise InputError(message, argument="seeds")
    return list(dict.fromkeys(values))


@dataclass(frozen=True)
class Builder:
    """Build the models of a study; the seed is set before each."""

    build: BuildInput
    axis: str  # a value of AXES
    base: BaseInput | None
    first_seed: int
    precision: Precision = SINGLE

    def __post_init__(self) -> None:
        if isinstance(self.build, nn.Module) or not callable(self.build):
            message = (
                f"build: expected a function of the {self.axis}, got {type(self.build).__name__}"
            )
            raise InputError(message, "wrong-type", argument="build")
        try:
            parameters = signature(self.build)
        except (TypeError, ValueError):  # written in C
            return
        try:
            parameters.bind(1)
        except TypeError as error:
            if parameters.parameters:
                remedy = "give its other parameters defaults"
            else:
                remedy = f"let it take the {self.axis} and return a model of this size"
            message = (
                f"build: expected a function of the {self.axis} alone, got one with the signature"
                f" {parameters} ({error}); {remedy}"
            )
            raise InputError(message, "build-arguments", argument="build") from error

    def built(self, size: int, seed: int) -> Built:
        """Return what `build` returns at this size, after setting the seed."""
        set_seed(seed)
        built = self.build(size)
        in_precision(built, self.precision)
        return built

    def base_model(self, smallest: nn.Module) -> nn.Module:
        """Return the base, which is the smallest model by default."""
        if self.base is None:
            return smallest
        if isinstance(self.base, nn.Module):
            return self.base
        return model_of(self.built(count(self.base, "base"), self.first_seed))


def plan_family(
    largest: nn.Module, base: nn.Module, batch: Batch, settings: Mapping[str, Any]
) -> Family:
    """Read how the largest model has grown from the base, with an example batch."""
    inputs = on_device(call_inputs(batch), largest)
    return family(largest, base, **{"inputs": inputs, **settings})


@dataclass(frozen=True)
class Setup:
    """A model ready to train."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Scheduler | None = None
    plan: Plan | None = None  # the plan that scaled the model, if there is one


def read_setup(
    built: Built,
    planner: Callable[[nn.Module], Plan],
    scheduler: Callable[[Optimizer], Scheduler] | None,
) -> Setup:
    """Make ready to train what `build` returned.

    This is a module (to be planned), a plan, or a tuple of a module or plan, an optimizer and
    perhaps a scheduler.
    """
    if isinstance(built, (tuple, list)) and built:
        first, *rest = built
    else:
        first = built
        rest = []
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
        raise _wrong_build(types)
    if rest:
        optimizer = rest[0]
    else:
        assert plan is not None  # a module without an optimizer was planned
        optimizer = plan.optimizer(**fused_options(plan))
    if not isinstance(optimizer, Optimizer):
        raise _wrong_build(types)
    check_modules(model)
    check_optimizer(model, optimizer)
    if len(rest) == 2:
        return Setup(model, optimizer, rest[1], plan)  # pyright: ignore[reportArgumentType]
    if scheduler:
        return Setup(model, optimizer, scheduler(optimizer), plan)
    return Setup(model, optimizer, plan=plan)


def model_of(built: Built) -> nn.Module:
    """Return the module in what `build` returned."""
    model = built
    if isinstance(built, (tuple, list)) and built:
        model = built[0]
    if isinstance(model, Plan):
        model = model.bound()
    if not isinstance(model, nn.Module):
        raise _wrong_build(type(model).__name__)
    return unwrap(model)


def cast_batches(batches: Sequence[Batch], precision: Precision) -> list[Batch]:
    """Cast batches like the model; those that are one object stay one."""
    by_id = {id(batch): precision.cast_batch(batch) for batch in batches}
    return [by_id[id(batch)] for batch in batches]


def in_precision(built: Built, precision: Precision) -> None:
    """Cast the parameters of what `build` returned, in place, if the precision asks for it."""
    if precision.dtype is not None:
        model = model_of(built)
        cast_model(model, next(model.parameters()).device, precision.dtype)


# --- many runs ------------------------------------------------------------------------------------


def run_all(
    sizes: Sequence[int],
    seeds: Sequence[int],
    action: Callable[[int, int], None],
    axis: str,
    progress: Progress | None = None,
) -> tuple[list[str], bool]:
    """Run `action` for all sizes of one seed, then of the next.

    Return a list of troubles, and whether the user interrupted the runs. In this order, exponents
    can be fitted after an interruption. An error in the first run is raised; a later error costs
    that run only.
    """
    runs = [(size, seed) for seed in seeds for size in sizes]
    troubles = []
    for done, (size, seed) in enumerate(runs):
        if progress:
            progress(done, len(runs), f"{axis} {size}, seed {seed}")
        try:
            action(size, seed)
        except KeyboardInterrupt:
            trouble = (
                f"interrupted after {done} of {len(runs)} runs; only these are judged. They are not"
                " on disk: call save() of the check to write them. A new check starts from the"
                " first run"
            )
            return [*troubles, with_code(trouble, "check-interrupted")], True
        except Exception as error:
            if done == 0:
                if not isinstance(error, InputError):
                    error.add_note(f"orderone: raised while the model of {axis} {size} was trained")
                raise
            reason = f"{type(error).__name__}: {without_code(str(error))}"
            trouble = f"{axis} {size}, seed {seed} failed ({reason})"
            troubles.append(with_code(trouble, "run-failed"))
    if progress:
        progress(len(runs), len(runs), "")
    return troubles, False


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Records of one training: sizes by step, losses, and the reason of an early end."""

    size: int
    seed: int
    rows: Sequence[Row] = ()
    losses: Sequence[float] = ()
    same_output: Mapping[str, str] = field(default_factory=dict)
    rates: Sequence[Mapping[str, float]] = ()  # learning rates, step by step
    # other settings of each tensor's parameter group, by name
    settings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ratios: Sequence[Ratio] = ()  # alignment across the last step, if it was measured
    penalties: Mapping[str, float] = field(default_factory=dict)  # decay added to gradients
    # relative difference of gradients in half precision from those in the precision of parameters
    rounding: Mapping[str, float] = field(default_factory=dict)
    # first gradient that the optimizer gets / gradient of the loss, by tensor, if it was measured
    clipped: Mapping[str, float] = field(default_factory=dict)
    # tensors on whose values the loss does not depend, if this was measured
    unused: frozenset[str] = frozenset()
    steps: int = 0  # completed steps
    ended: str = ""  # why it ended early
    remarks: Sequence[str] = ()


class Training:
    """Train one model step by step, and record losses and learning rates."""

    def __init__(self, setup: Setup, loss: Loss | None, precision: Precision = SINGLE):
        self.setup: Setup = setup
        self.loss: Loss | None = loss
        self.precision: Precision = precision
        self.scale: float = 1.0  # of the loss; `choose_scale` sets it
        self.losses: list[float] = []
        self.rates: list[dict[str, float]] = []  # by tensor
        self._names = names_by_id(setup.model)
        self.settings: dict[str, dict[str, float]] = settings_of(setup.optimizer, self._names)
        self.steps: int = 0
        self.ended: str = ""  # why no more steps are possible

    def step(self, batch: Batch) -> bool:
        """Make one update; return False, without an update, if the loss is not finite."""
        set_training_mode(self.setup.optimizer, True)
        loss = self.loss_on(batch)
        value = float(loss.detach())
        self.losses.append(value)
        if not math.isfinite(value):
            self.ended = f"the loss is {value} at step {self.steps}"
            return False
        forget_gradients(self.setup.optimizer)
        if not self._backward(loss):
            self.ended = f"gradients are not finite in float16 at step {self.steps}"
            return False
        self.rates.append(self._learning_rates())
        self.setup.optimizer.step()
        if isinstance(self.setup.scheduler, ReduceLROnPlateau):
            self.setup.scheduler.step(value)
        elif self.setup.scheduler is not None:
            self.setup.scheduler.step()
        self.steps += 1
        return True

    def loss_on(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, in the precision of the training."""
        model = self.setup.model
        with self.precision.passes(model), naming_batch("batches", batch, model):
            loss = loss_of(model, batch, self.loss)
        if not loss.requires_grad:
            message = (
                "loss: expected a loss that depends on trained tensors; is it detached, or is the"
                " whole model frozen?"
            )
            raise InputError(message, "detached-loss", argument="loss")
        return loss

    def choose_scale(self, batch: Batch) -> None:
        """Find a scale of the loss in float16, in passes that leave the model as it is.

        It stays the same in all steps, so that every step is made: a scale that changes, as in
        long trainings, would begin with steps that are left out.
        """
        if not self.precision.scales_loss:
            return
        scale = LARGEST_SCALE
        while scale > 1 and not self._is_finite(batch, scale):
            scale /= 2
        self.scale = max(1.0, scale / HEADROOM)

    def _is_finite(self, batch: Batch, scale: float) -> bool:
        self.scale = scale
        with repeatable(self.setup.model):
            finite = self._backward(self.loss_on(batch))
        self.setup.optimizer.zero_grad(set_to_none=True)
        return finite

    def _backward(self, loss: Tensor) -> bool:
        """Compute the gradients; return False if the scale of the loss makes them infinite."""
        if not self.precision.scales_loss:
            loss.backward()
            return True
        (loss * self.scale).backward()
        finite = True
        for parameter in self.setup.model.parameters():
            if parameter.grad is None:
                continue
            if parameter.dtype == torch.float16:
                raise float16_parameters()
            gradient = local_tensor(parameter.grad)
            if gradient.is_sparse:
                gradient = sparse_values(gradient)
            gradient /= self.scale
            finite &= bool(gradient.isfinite().all())
        return finite

    def _learning_rates(self) -> dict[str, float]:
        rates: dict[str, float] = {}
        for group, tensors in groups_with_names(self.setup.optimizer, self._names):
            if "lr" in group:
                for name, tensor in tensors.items():
                    rates[name] = _rate(group, tensor)
        return rates


def forget_gradients(optimizer: Optimizer) -> None:
    """Set the gradients to None. The wrappers around `zero_grad` of torch would take longer."""
    if getattr(optimizer.zero_grad, "__func__", None) is not Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)
        return
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            tensor.grad = None


def names_by_id(model: nn.Module) -> dict[int, str]:
    """Return the name of every parameter by the id of its tensor."""
    return {id(tensor): name for name, tensor in tensors_of(model).items()}


def groups_with_names(
    optimizer: Optimizer, names: Mapping[int, str]
) -> Iterator[tuple[Mapping[str, Any], dict[str, Tensor]]]:
    """Yield each parameter group with its tensors that have a name, by name."""
    for group in optimizer.param_groups:
        tensors: dict[str, Tensor] = {}
        for tensor in group["params"]:
            name = names.get(id(tensor))
            if name is not None:
                tensors[name] = tensor
        yield group, tensors


def _rate(group: Mapping[str, Any], tensor: Tensor) -> float:
    """Return the learning rate of a tensor; for Muon, that of the default convention."""
    rate = float(group["lr"])
    convention = group.get(CONVENTION)
    if convention in MUON_CONVENTIONS and tensor.dim() > 1 and rate > 0:
        return convert_muon_lr(rate, tuple(tensor.shape), convention, "original")
    return rate


def settings_of(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, dict[str, float]]:
    """Return the numbers in the parameter group of each tensor, apart from the learning rate."""
    settings: dict[str, dict[str, float]] = {}
    for group, tensors in groups_with_names(optimizer, names):
        numbers: dict[str, float] = {}
        for key, value in group.items():
            if key in ("params", "lr"):
                continue
            if isinstance(value, (int, float)):
                numbers[key] = float(value)
            elif isinstance(value, (tuple, list)):
                for position, part in enumerate(value):
                    if isinstance(part, (int, float)):
                        numbers[f"{key}[{position}]"] = float(part)
        for name in tensors:
            settings[name] = numbers
    return settings


@dataclass(frozen=True)
class RunOptions:
    """Measurements to make in one run."""

    # all batches are the same, and passes draw no random numbers: changes are measured in training
    # passes
    fixed: bool
    decay: bool = False  # measure the weight decay by itself
    layers: Sequence[Layer] = ()  # layers whose alignment to measure across the last step
    quantities: tuple[Quantity, ...] = QUANTITIES  # quantities to record
    precision: Precision = SINGLE
    rounding: bool = False  # compare gradients in half precision with those of single precision
    unused: bool = False  # find tensors on whose values the loss does not depend
    clipping: bool = False  # compare the first gradients with those of the loss alone
    spare: SpareState | None = None  # of the optimizer of an earlier run, and for a later one


def train(
    setup: Setup,
    batches: Sequence[Batch],
    loss: Loss | None,
    size: int,
    seed: int,
    options: RunOptions,
) -> Run:
    """Train one model under a probe, with one step for each batch."""
    model = setup.model
    if options.fixed:
        batches = [on_device(batches[0], model)] * len(batches)
    else:
        batches = [on_device(batch, model) for batch in batches]
    decay = Decay()
    if options.decay:
        decay = _decay_if_measurable(setup)
    training = Training(setup, loss, options.precision)
    training.choose_scale(batches[0])
    rounding = _rounding(training, batches[0], options)
    unclipped: dict[str, float] = {}
    if options.clipping:
        unclipped = sizes_without_hooks(model, batches[0], loss, options.precision)
    if options.spare is not None:  # after the decay was measured on copies
        options.spare.lend(setup.optimizer)
    probe, measured_ratios = _record(training, batches, options)
    if not training.ended:
        for name, error in _rounding(training, batches[0], options).items():
            rounding[name] = max(error, rounding.get(name, 0.0))
    rows: list[Row] = []
    for name, moments in decay.fractions.items():
        rows.append((0, name, Quantity.DECAY, moments))
    rows += _without_scale(probe.rows, training.scale)
    unused: frozenset[str] = frozenset()
    if options.unused:
        unused = _unused(training, batches[0], rows)
    if options.spare is not None:
        options.spare.keep(setup.optimizer)
    forget_gradients(setup.optimizer)  # plans and `build` may keep the model alive
    return Run(
        size=size,
        seed=seed,
        rows=tuple(rows),
        losses=tuple(training.losses),
        same_output=probe.same_output,
        rates=tuple(training.rates),
        settings=training.settings,
        ratios=tuple(measured_ratios),
        penalties=decay.penalties,
        rounding=rounding,
        clipped=clipped(rows, unclipped),
        unused=unused,
        steps=training.steps,
        ended=training.ended,
        remarks=decay.remarks,
    )


def _record(
    training: Training, batches: Sequence[Batch], options: RunOptions
) -> tuple[Probe, list[Ratio]]:
    """Train on all batches; return the probe that recorded it, and the alignment ratios."""
    model = training.setup.model
    fixed_batch = TRAINING
    if not options.fixed:
        fixed_batch = call_inputs(batches[0])

    @cache  # asked once per quantity, before the last step
    def has_untrained() -> bool:
        # a weak reference: in a cycle, the model and its optimizer would outlive the run
        recording = watched()
        return recording is not None and _has_untrained(recording)

    def is_due(quantity: Quantity, step: int) -> bool:
        """Return whether a check reads a quantity at this step; others are not recorded.

        Gradients of outputs: at the first and the last step. Weights, gradients and updates: until
        the first step with a learning rate; if tensors start behind zeros, also at the last step.
        """
        if quantity == Quantity.OUTPUT_GRADIENT:
            return step in (0, len(batches) - 1)
        if quantity in OF_PASSES:
            return True
        if not any(any(rates.values()) for rates in training.rates):
            return True
        return step == len(batches) - 1 and has_untrained()

    probe = Probe(
        model,
        training.setup.optimizer,
        fixed_batch,
        options.quantities,
        is_due=is_due,
        precision=options.precision,
    )
    watched = weakref.ref(probe)
    states: list[State] = []  # before and after the last step
    with probe.watch():
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with _adding_state(states, model, batches[0], options, is_last):
                if not training.step(batch):
                    break
        if training.ended:
            return probe, []
        with _adding_state(states, model, batches[0], options):
            if options.fixed:
                probe.last_pass(lambda: training.loss_on(batches[0]))
        if not options.layers:
            return probe, []
        return probe, list(ratios(options.layers, *states, kinds=ALIGNMENT))


def _unused(training: Training, batch: Batch, rows: Sequence[Row]) -> frozenset[str]:
    """Return the tensors without a gradient on whose values the loss does not depend."""
    if training.ended:
        return frozenset()
    reached = {name for _, name, quantity, _ in rows if quantity == Quantity.GRADIENT}
    unreached: dict[str, Tensor] = {}
    for name, tensor in tensors_of(training.setup.model).items():
        if tensor.requires_grad and name not in reached and local_tensor(tensor) is tensor:
            unreached[name] = tensor

    def loss() -> float:
        with repeatable(training.setup.model):
            return float(training.loss_on(batch).detach())

    if not unreached:
        return frozenset()
    return unused_tensors(unreached, loss)


def _without_scale(rows: Sequence[Row], scale: float) -> list[Row]:
    """Divide gradients at outputs by the scale of the loss; those of tensors are unscaled."""
    unscaled: list[Row] = []
    for step, name, quantity, moments in rows:
        if quantity == Quantity.OUTPUT_GRADIENT:
            moments = moments.times(1 / scale)
        unscaled.append((step, name, quantity, moments))
    return unscaled


def _rounding(training: Training, batch: Batch, options: RunOptions) -> dict[str, float]:
    """Return the relative error of each gradient that half precision makes, by tensor.

    It is the difference of the gradients with and without autocast, for the same weights.
    """
    if training.precision.half is None or not options.rounding:
        return {}
    exact = Training(training.setup, training.loss)
    training.setup.optimizer.zero_grad(set_to_none=True)  # gradients of the last step
    gradients: list[dict[str, Tensor]] = []
    for one in (training, exact):
        with repeatable(training.setup.model):
            one._backward(one.loss_on(batch))
        gradients.append(_gradients(training.setup))
    errors: dict[str, float] = {}
    rounded, reference = gradients
    for name, gradient in reference.items():
        size = float(torch.linalg.vector_norm(gradient))
        if name in rounded and size > 0:
            errors[name] = float(torch.linalg.vector_norm(rounded[name] - gradient)) / size
    return errors


def _gradients(setup: Setup) -> dict[str, Tensor]:
    """Take the gradients away from the tensors."""
    gradients: dict[str, Tensor] = {}
    for name, tensor in tensors_of(setup.model).items():
        if tensor.grad is not None and tensor.grad.layout == torch.strided:
            gradients[name] = tensor.grad
    setup.optimizer.zero_grad(set_to_none=True)
    return gradients


def _has_untrained(probe: Probe) -> bool:
    """Return whether a tensor has not moved in the recorded steps."""
    moved: set[str] = set()
    tensors: set[str] = set()
    for _, name, quantity, moments in probe.rows:
        if quantity == Quantity.WEIGHT:
            tensors.add(name)
        elif quantity == Quantity.UPDATE and moments.rms > 0:
            moved.add(name)
    return moved != tensors


@contextmanager
def _adding_state(
    states: list[State],
    model: nn.Module,
    batch: Batch,
    options: RunOptions,
    wanted: bool = True,
) -> Iterator[None]:
    """Add the state that the model has when the context opens, if it is wanted.

    With a fixed batch, it is recorded in the pass inside the context; otherwise in an extra pass.
    """
    layers = options.layers
    if not layers or not wanted:
        yield
    elif options.fixed:
        weights = {layer.name: layer.weight.detach() for layer in layers}
        if not states:  # the step that follows changes them
            weights = weights_of(layers)
        is_first = not states  # alpha needs the inputs before the step, and the shapes after it
        with reading(model, layers, copy=is_first) as inputs:
            yield
        states.append(State(weights, {TRAINING_TOKENS: inputs}))
    else:
        states.append(observe(model, layers, {TRAINING_TOKENS: batch}, options.precision))
        yield


def same_schedule(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether one sequence of learning rates is the other times a constant.

    Rates that have fallen to almost zero do not count: a schedule that divides its rate for ever
    ends with numbers that have lost their digits.
    """
    factors = []
    largest = max(first, default=0.0)
    largest_other = max(second, default=0.0)
    for rate, other in zip(first, second, strict=False):
        if rate < ZERO * largest and other < ZERO * largest_other:
            continue
        if (rate == 0) != (other == 0):
            return False
        if rate:
            factors.append(other / rate)
    return max(factors, default=1.0) <= (1 + SAME) * min(factors, default=1.0)


# --- weight decay ---------------------------------------------------------------------------------
#
# Weight decay is the effect of a step on weights whose gradient is zero. In ordinary steps the
# update is far larger than the decay, so the decay is measured on copies. Adam adds its penalty to
# the gradient and normalizes the sum, so that no weight shrinks by a fixed fraction. There the
# ratio of penalty to gradient counts: if it grows with the size, the penalty dominates the updates
# of large models.


def copies_of(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], Optimizer]:
    """Copy the trained tensors, by name, and the optimizer that moves them.

    If a warm-up starts at learning rate zero, the copy has the learning rate after warm-up.
    """
    model, optimizer = _deepcopy(model, optimizer)
    set_training_mode(optimizer, True)
    for group in optimizer.param_groups:
        if not group["lr"] and "initial_lr" in group:
            group["lr"] = group["initial_lr"]
    tensors = {}
    for name, item in inventory(model).items():
        if item.tensor.requires_grad:
            tensors[name] = item.tensor
    return tensors, optimizer


def _deepcopy(model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Copy a model and its optimizer with all attributes that the user's class adds.

    torch copies only groups, states and defaults of an optimizer.
    """
    memo: dict[int, Any] = {}
    copies = copy.deepcopy((model, optimizer), memo)
    for part in (optimizer, *getattr(optimizer, "parts", {}).values()):
        part_copy = memo[id(part)]
        for name, value in vars(part).items():
            # a scheduler replaces `step` by a function that steps with the original
            if name not in vars(part_copy) and name != "step":
                setattr(part_copy, name, copy.deepcopy(value, memo))
    return copies


@dataclass(frozen=True)
class Decay:
    """Effect of weight decay in one step."""

    fractions: Mapping[str, Moments] = field(default_factory=dict)  # tensor -> lost fraction
    # RMS of the penalty that is added to a gradient before their sum is normalized
    penalties: Mapping[str, float] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def _decay_if_measurable(setup: Setup) -> Decay:
    """Return the measured decay, or a remark why it was not measured."""
    try:
        return decay_of(setup.model, setup.optimizer)
    except Exception as error:  # some modules and optimizers refuse to be copied
        remark = f"weight decay was not measured ({type(error).__name__}: {error})"
        return Decay(remarks=(with_code(remark, "decay-not-measured"),))


def decay_of(model: nn.Module, optimizer: Optimizer) -> Decay:
    """Measure the weight decay of each tensor; tensors that do not shrink are left out."""
    if not any(group.get("weight_decay") for group in optimizer.param_groups):
        return Decay()
    tensors, stepper = copies_of(model, optimizer)
    for tensor in tensors.values():
        # in single precision, rounding hides a decay of 1e-6
        tensor.data = tensor.data.to(torch.promote_types(tensor.dtype, torch.float64))
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.grad = torch.zeros_like(tensor)
    stepper.step()

    fractions = _shrunk_fractions(before, tensors)
    coefficients: dict[int, float] = {}
    for group in stepper.param_groups:
        for tensor in group["params"]:
            coefficients[id(tensor)] = float(group.get("weight_decay", 0.0))
    penalties = {}
    for name, tensor in tensors.items():
        if name not in fractions and not torch.equal(tensor, before[name]):
            penalties[name] = coefficients[id(tensor)] * _rms(before[name])
    return Decay(fractions, penalties)


def _rms(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel())


@torch.no_grad()
def _shrunk_fractions(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Moments]:
    """Return the fraction by which each tensor has shrunk along itself."""
    ledger = Ledger()
    names = []
    for name, old in before.items():
        change = old - after[name]
        size = torch.linalg.vector_norm(old)
        moved = torch.linalg.vector_norm(change)
        if moved > 0 and size > 0:
            fraction = moved / size
            if torch.linalg.vector_norm(change - fraction * old) <= SAME_DIRECTION * moved:
                ledger.add(fraction.reshape(1))
                names.append(name)
    return dict(zip(names, ledger.fetch(), strict=True))
