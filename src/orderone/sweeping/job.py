"""Settings that all trials of a sweep share: the model's code, the data, the training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from orderone.core.canonical import digest
from orderone.core.errors import InputError
from orderone.observe.batches import Loss
from orderone.observe.inventory import shapes_of
from orderone.observe.precision import cast_model
from orderone.optimizers.registry import registered, remember
from orderone.optimizers.table import UserOptimizer, algorithm, class_name, nearest_record
from orderone.planning import Plan, plan
from orderone.planning.build import Family, family
from orderone.seeding import seeded, start_seed
from orderone.sweeping.built_optimizer import BuiltOptimizer, read_optimizer
from orderone.sweeping.member import Member, optimizer_options
from orderone.sweeping.repeated_start import Start
from orderone.sweeping.same_tensors import SameTensors
from orderone.sweeping.trial import (
    AMOUNTS,
    CHOICES,
    KNOWN,
    PER_TENSOR,
    SEEDS,
    SIZES,
    TUNED,
    Trial,
    Value,
    setting_of,
)
from orderone.torch_compat import tree_leaves
from orderone.training.compiled_pass import Decision
from orderone.training.fingerprint import identity
from orderone.training.schedule import Factor, schedule
from orderone.training.settings import Settings
from orderone.training.source import HeldOut, Source

if TYPE_CHECKING:
    from orderone.sweeping.example_loss import ExampleLoss

FORMAT = 1  # version of the meaning of a trial; another number makes all trials new ones
BASE_SEED = 0
Scale = Mapping[str, Any]


@dataclass(frozen=True)
class Built:
    """A model, and the settings of the optimizer that `build` returned with it, if it did."""

    model: nn.Module
    optimizer: BuiltOptimizer | None = None

    @property
    def tuned(self) -> Mapping[str, Any]:
        """Return lr, weight_decay and eps of the optimizer."""
        return self.optimizer.tuned if self.optimizer else {}

    @property
    def no_decay(self) -> tuple[str, ...]:
        return self.optimizer.no_decay if self.optimizer else ()


def read_built(built: object) -> Built:
    """Read what `build` returned: a module, or (module, optimizer)."""
    if isinstance(built, nn.Module):
        return Built(built)
    if isinstance(built, (tuple, list)) and len(built) == 2 and isinstance(built[0], nn.Module):
        return Built(built[0], read_optimizer(built[0], built[1]))
    got = type(built).__name__
    if isinstance(built, (tuple, list)):
        got = f"({', '.join(type(part).__name__ for part in built)})"
    raise InputError(
        "build: expected a function that returns an nn.Module or (module, optimizer), got"
        f" {got}; pass a schedule to the sweep: schedule=..., warmup=...",
        "wrong-type",
        argument="build",
    )


def _check_same_settings(base: BuiltOptimizer | None, built: BuiltOptimizer | None) -> None:
    """Raise an InputError if `build` scales settings of the optimizer itself: the rule does."""
    if base is None or built is None:
        return
    for name in {**base.tuned, **base.options, **built.tuned, **built.options}:
        before = {**base.tuned, **base.options}.get(name)
        now = {**built.tuned, **built.options}.get(name)
        if before != now:
            raise InputError(
                f"build: {name} of the optimizer that it returns depends on the size ({before} at"
                f" the base, {now} here); return the value of the base at every size, the rule"
                " scales it",
                "optimizer-depends-on-size",
                argument="build",
            )


def _with_default(
    setting: Value | dict[str, Value] | None, default: float | None
) -> Value | dict[str, Value] | None:
    """Return the setting of a trial, with the value of the optimizer that `build` returns."""
    if setting is None:
        return default
    if isinstance(setting, dict) and default is not None:
        return {"default": default, **setting}
    return setting


@dataclass(frozen=True)
class Job:
    """Everything that defines a trial except its point in the space.

    `fingerprint` identifies the settings that change results.
    """

    build: Callable[..., Any]
    data: Source
    steps: int
    loss: Loss | None = None
    schedule: str | Factor = "constant"
    warmup: int = 0
    clip: float | None = None
    accumulate: int = 1
    precision: str = "float32"  # or bfloat16, float16 (autocast), float64
    evaluate_every: int | None = None  # None: held-out loss at the end only
    batch_size: int | None = None  # None: that of the data
    sweeps_steps: bool = False  # trials set their steps; `steps` is the largest number
    base_sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # sizes of the base, if `build` makes it
    base: Any = None  # or another base, as `plan` takes it
    rules: Mapping[str, Any] = field(default_factory=dict)  # custom rules, by name
    # custom optimizer classes, by label
    optimizers: Mapping[str, UserOptimizer] = field(default_factory=dict)
    plan_options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None  # identifies `build`, `loss` and data instead of their code
    # --- execution, which changes no result ---
    device: str = "cpu"
    report_every: int = 10
    checkpoint_seconds: float = 60.0
    together: int | None = None  # members of a stack; None: as many as fit
    compile: bool | None = None
    graphs: bool | None = None
    deterministic: bool = False
    verify: bool = True  # prove that stacks equal stand-alone runs
    processes: int = 1  # that train the sweep, and share the memory of a machine
    tensors: SameTensors = field(default_factory=SameTensors, repr=False, compare=False)
    # by program: whether checkpoints were checked, and the state that they would lose
    resume_checks: dict[str, tuple[bool, str | None]] = field(
        default_factory=dict, repr=False, compare=False
    )
    # by program: the first trial of this process that began with its first update
    starts: dict[str, Start] = field(default_factory=dict, repr=False, compare=False)
    # by program: before the first training of this process; None if all code is that of torch
    examples: "dict[str, ExampleLoss | None]" = field(
        default_factory=dict, repr=False, compare=False
    )
    # by program: whether passes of trainings that cannot be stacked are compiled
    compile_decisions: dict[str, Decision] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out caches: another process makes them again."""
        state = dict(self.__dict__)
        state.pop("settings", None)
        state.pop("described", None)
        state["_made"] = {}
        state["starts"] = {}
        state["examples"] = {}
        records = [nearest_record(algorithm(kind).torch_class) for kind in self.optimizers.values()]
        state["optimizer_records"] = [record for record in records if record is not None]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for record in state.pop("optimizer_records", ()):
            if registered(record.torch_class) is None and record.user_class is not None:
                remember(record)  # another process has not called `register`
        self.__dict__.update(state)

    # --- identity ---------------------------------------------------------------------------------

    @cached_property
    def described(self) -> dict[str, Any]:
        """Settings that the fingerprint is computed from."""
        described: dict[str, Any] = {
            "format": FORMAT,
            "build": self.name or identity(self.build),
            "loss": self._described_loss(),
            "data": self.data.name,
            "steps": "swept" if self.sweeps_steps else self.steps,
            "schedule": self.schedule,
            "base": self._described_base(),
            "rules": {name: str(identity(rule)) for name, rule in self.rules.items()},
            "plan": {name: identity(value) for name, value in sorted(self.plan_options.items())},
            "warmup": self.warmup,
            "clip": self.clip,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "evaluate_every": self.evaluate_every,
        }
        if self.name and not self.data.named:
            described["data"] = self.name
            if self.data.content is not None:
                described["data"] = [self.name, self.data.content]
        if self.batch_size is not None:
            described["batch_size"] = self.batch_size
        if isinstance(self.data.held_out, HeldOut):
            described["held_out"] = digest(identity(self.data.held_out.batches))
        if not isinstance(self.schedule, str):
            described["schedule"] = identity(self.schedule)
        if self.optimizers:  # stores of version 0.1 have no such entry
            described["optimizers"] = {
                label: _optimizer_identity(kind) for label, kind in self.optimizers.items()
            }
        return described

    def _described_loss(self) -> object:
        if self.loss is None:
            return None
        return self.name or identity(self.loss)

    def _described_base(self) -> object:
        if self.base is None:
            return dict(self.base_sizes)
        return identity(_base_identity(self.base))

    @property
    def fingerprint(self) -> str:
        return digest(self.described)

    @cached_property
    def settings(self) -> Settings:
        """Settings of the training loop; this validates the schedule."""
        return Settings(
            steps=self.steps,
            factor=schedule(self.schedule, self.steps, self.warmup),
            accumulate=self.accumulate,
            clip=self.clip,
            precision=self.precision,
            evaluate_every=self.evaluate_every,
            report_every=self.report_every,
            checkpoint_seconds=self.checkpoint_seconds,
        )

    def settings_of(self, trial: Trial) -> Settings:
        """Return the settings of the training loop of one trial, which may set its steps."""
        steps = trial.get("steps")
        if steps is None:
            return self.settings
        factor = schedule(self.schedule, steps, self.warmup)
        return replace(self.settings, steps=steps, factor=factor)

    @property
    def tokens_per_batch(self) -> tuple[int, int]:
        """Samples of a batch, and tokens of a sample (1 if the first input has no ids)."""
        for leaf in tree_leaves(self.data.at(0, 0)):
            if isinstance(leaf, torch.Tensor) and leaf.ndim:
                is_ids = leaf.ndim > 1 and not (leaf.is_floating_point() or leaf.is_complex())
                return len(leaf), leaf[0].numel() if is_ids else 1
        return 1, 1

    def source(self, trial: Trial) -> Source:
        """Return the data of a trial, which may set its batch size."""
        size = trial.get("batch_size")
        if size is None:
            return self.data
        key = f"data in batches of {size}"
        if key not in self._made:
            self._made[key] = self.data.resized(size)
        return self._made[key]

    def warned(self, what: str) -> bool:
        """Return whether this was called before with the same text."""
        before = self._made.get(f"warned of {what}", False)
        self._made[f"warned of {what}"] = True
        return before

    def trial(self, settings: Mapping[str, Any]) -> Trial:
        return Trial(settings, self.fingerprint)

    # --- making members ---------------------------------------------------------------------------

    def member(self, trial: Trial) -> Member:
        """Return the initialized model of a trial, on the job's device and in its precision.

        A new plan builds other models. What `build` leaves in classes or global variables must be
        that of the trial, so its model is then built once more.
        """
        built, made = self._built_and_planned(trial)
        model = built.model
        with seeded(start_seed(trial.seed)):
            made.apply()
        cast_model(model, torch.device(self.device), self.settings.dtype)
        if built.optimizer:
            from_build = built.optimizer.options
        else:
            from_build = {}
        options = optimizer_options(
            made.settings.optimizer,
            trial.settings,
            made.user_class,
            made.user_options,
            from_build,
        )
        return Member(model, made, trial.seed, trial.data_seed, trial.key, options)

    def _built_and_planned(self, trial: Trial) -> tuple[Built, Plan]:
        plans = len(self._made)
        with seeded(trial.seed):
            built = self.built(trial.settings)
        self.tensors.check(trial, shapes_of(built.model))
        planned = self.plan_for(trial, built)
        if len(self._made) > plans:
            return self._built_and_planned(trial)
        return built, planned

    def built(self, settings: Scale) -> Built:
        """Return what `build` makes for these settings; the caller sets the seed."""
        sizes = {name: settings[name] for name in SIZES if settings.get(name) is not None}
        return read_built(call_build(self.build, sizes, Trial(settings).arguments))

    def plan_for(self, trial: Trial, built: Built) -> Plan:
        """Return the plan of a trial.

        The forward pass is traced once per architecture and rule, and each plan is made once.
        Settings of the trial come before those of the optimizer that `build` returns.

        A trace may change what a model holds, so another model is planned. It is always from the
        same seed: what `build` draws must not make plans depend on which trial is first.
        """
        model = built.model
        tuned: dict[str, Any] = {"eps": trial.get("eps", built.tuned.get("eps"))}
        for name in PER_TENSOR:
            tuned[name] = _with_default(setting_of(trial.settings, name), built.tuned.get(name))
        kind = _kind(trial)
        key = f"{kind} {tuned}"
        if key not in self._made:
            with seeded(BASE_SEED):
                another = self.built(trial.settings)
            planned = self._planned(trial, another, kind, tuned)
            self._made[key] = replace(planned, model=None, planned={})
        # `planned` is empty: the model is new, so there are no earlier sizes to compare with.
        return replace(self._made[key], model=model, planned={})

    def _planned(self, trial: Trial, built: Built, kind: str, tuned: Scale) -> Plan:
        model = built.model
        self._check_optimizer(trial, built.optimizer)
        rule = self.rules.get(trial.get("rule", "mup"), trial.get("rule", "mup"))
        optimizer = trial.get("optimizer", "adamw")
        source = self.source(trial)
        options = {
            "rule": rule,
            "optimizer": self.optimizers.get(optimizer, optimizer),
            "no_decay": built.no_decay,
            **self.plan_options,
        }
        if self.base is not None and not isinstance(self.base, nn.Module):
            return plan(model, base=self.base, **{"inputs": source.inputs(), **options}, **tuned)
        if kind not in self._made:
            base = self.base
            if base is None:
                built_base = self._base_for(trial)
                _check_same_settings(built_base.optimizer, built.optimizer)
                base = built_base.model
            self._made[kind] = family(model, base, **{"inputs": source.inputs(), **options})
        models: Family = self._made[kind]
        return replace(models, request=models.request.tuned(**tuned)).plan(model)

    def _check_optimizer(self, trial: Trial, optimizer: BuiltOptimizer | None) -> None:
        """Raise an InputError if `build` returns another optimizer than at the first call."""
        label = trial.get("optimizer", "adamw")
        if optimizer is not None and algorithm(optimizer.kind).label != label:
            raise InputError(
                f"build: expected the optimizer {label} from every call, got"
                f" {class_name(optimizer.kind)} for ({trial}); pass optimizer=[...] to compare"
                " several, and return the model alone",
                "optimizer-given-twice",
                argument="optimizer",
            )

    def _base_for(self, trial: Trial) -> Built:
        """Return the trial's architecture at the size of the base, always from the same seed."""
        with seeded(BASE_SEED):
            return self.built({**trial.settings, **self.base_sizes})


def _kind(trial: Trial) -> str:
    """Return a text that is equal for trials whose plans differ only in what the space tunes."""
    return f"{trial.get('rule', 'mup')} {trial.architecture}"


def call_build(
    build: Callable[..., Any], sizes: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Any:
    """Call `build`, passing sizes by name where it names them, else in the order width, depth."""
    try:
        parameters = signature(build).parameters
    except (TypeError, ValueError):  # written in C
        return build(*sizes.values(), **arguments)
    takes_all = _takes(parameters, Parameter.VAR_KEYWORD)
    named: dict[str, Any] = {}
    rest: list[Any] = []
    for name, value in sizes.items():
        if name in parameters or takes_all:
            named[name] = value
        else:
            rest.append(value)
    if not named:
        return build(*rest, **arguments)
    free = [name for name in parameters if name not in named and name not in arguments]
    by_order = dict(zip(free, rest, strict=False))
    return build(**named, **by_order, **arguments)


def _takes(parameters: Mapping[str, Parameter], kind: object) -> bool:
    """Return whether one of the parameters is of this kind, such as `**kwargs`."""
    return any(parameter.kind is kind for parameter in parameters.values())


def check_build(build: object, sizes: Sequence[str], arguments: Sequence[str]) -> None:
    """Raise an InputError if `build` cannot be called with these sizes and arguments."""
    if isinstance(build, nn.Module) or not callable(build):
        raise InputError(
            "build: expected a function of the width that returns an nn.Module, got"
            f" {type(build).__name__}",
            "wrong-type",
            argument="build",
        )
    try:
        parameters = signature(build).parameters
    except (TypeError, ValueError):
        return
    takes_all = _takes(parameters, Parameter.VAR_KEYWORD)
    unknown = [name for name in arguments if name not in parameters]
    if takes_all:  # such as "eps.embedding": Python has no arguments of this kind
        unknown = [name for name in unknown if "." in name]
    if unknown:
        others = [name for name in parameters if name not in KNOWN]
        takes = "; build has no other arguments"
        if others:
            takes = f", or another argument of build ({', '.join(others)})"
        known = ", ".join((*TUNED, *CHOICES, *AMOUNTS, *SEEDS))
        raise InputError(
            f"space: unknown key {unknown[0]!r}; expected one of {known}; or lr, weight_decay,"
            f" init_scale or init of a role, pattern or optimizer, such as lr.embedding{takes}",
            "unknown-space-key",
            argument="space",
        )
    left = [p for p in parameters.values() if p.name not in (*sizes, *arguments)]
    by_position = [p for p in left if p.kind is not Parameter.KEYWORD_ONLY]
    missing = [name for name in sizes if name not in parameters]
    takes_any_number = takes_all or _takes(parameters, Parameter.VAR_POSITIONAL)
    if not takes_any_number and len(missing) > len(by_position):
        raise InputError(
            f"build: expected a function of {' and '.join(sizes)}, got one with the signature"
            f" {signature(build)}",
            "build-arguments",
            argument="build",
        )
    _check_no_argument_missing(left, len(missing), bool(sizes))


def _check_no_argument_missing(left: Sequence[Parameter], by_order: int, sized: bool) -> None:
    """Raise an InputError if `build` requires an argument that the sweep does not pass.

    `left` are the parameters that are not passed by name. The first `by_order` positional ones of
    them are passed a size. `sized`: the sweep has widths or depths.
    """
    needed: list[str] = []
    for parameter in left:
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            continue
        if parameter.kind is not Parameter.KEYWORD_ONLY and by_order > 0:
            by_order -= 1
        elif parameter.default is Parameter.empty:
            needed.append(parameter.name)
    if needed:
        if needed[0] in SIZES:
            remedy = f"pass {needed[0]}s=[...] to the sweep"
        elif needed[0] in KNOWN:
            remedy = (
                f"the sweep itself sets {needed[0]} after build, also in an optimizer that build"
                " returns; leave the argument out, or give it a default value"
            )
        else:
            remedy = f'add {{"{needed[0]}": [...]}} to the space, or give it a default value'
            if not sized:
                remedy = f"pass widths=[...] to the sweep, or {remedy}"
        raise InputError(
            f"build: its argument {needed[0]!r} gets no value; {remedy}",
            "build-arguments",
            argument="build",
        )


def _optimizer_identity(kind: UserOptimizer) -> object:
    """Return what identifies an optimizer: its code, and the law of a registered class."""
    record = registered(algorithm(kind).torch_class)
    if record is None:
        return identity(kind)
    facts = (str(record.law), record.coupled_decay, record.rest, identity(record.rate_factor))
    return [identity(kind), *facts]


def _base_identity(base: object) -> object:
    """Return what identifies a base: the tensors of a module, the rows of a saved plan."""
    if isinstance(base, Plan):
        return [(row.name, row.shape, row.init_std) for row in base.rows]
    if isinstance(base, nn.Module):
        tensors: dict[str, object] = {}
        for name, parameter in base.named_parameters():
            if parameter.is_meta:
                tensors[name] = list(parameter.shape)
            else:
                tensors[name] = parameter
        return tensors
    return base
