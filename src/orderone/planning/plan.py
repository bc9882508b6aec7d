"""A plan: one row for every tensor, with its settings and the reason. It changes nothing until
`apply`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from torch import distributed, nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.core.notebook import notebook_html
from orderone.core.roles import Role
from orderone.core.text_table import printable
from orderone.observe.batches import ModelInputs, call_inputs
from orderone.observe.inventory import tensors_of, unwrap
from orderone.optimizers import row_rates
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.equal_strides import fills_its_memory
from orderone.optimizers.muon import CONVENTION, class_for
from orderone.optimizers.muon_rates import convert_muon_lr
from orderone.optimizers.registry import registered_name
from orderone.optimizers.row_rates import RowSettings
from orderone.optimizers.table import (
    CLASSES,
    FUSED,
    Eps,
    check_options,
    class_name,
    construct,
    find_record,
    label,
    record_named,
)
from orderone.planning import apply, schedule, text
from orderone.planning.draw import Draw
from orderone.planning.origins import Origin
from orderone.planning.start_outputs import measure_outputs
from orderone.planning.start_sizes import StartReport, start_report
from orderone.planning.supported import has_sparse_gradients
from orderone.rules.axes import Factors, Growth

if TYPE_CHECKING:
    import pandas
    from torch import Tensor
    from torch.optim.lr_scheduler import LRScheduler

    from orderone.planning.exports import Export
    from orderone.planning.exports.content import Names
    from orderone.planning.init_check import Observation
    from orderone.planning.initial import Initial
    from orderone.planning.options import ExampleBatch

# optimizer, lr, weight decay, eps, betas, settings of rows
GroupKey: TypeAlias = tuple[str, float, float, Eps, tuple[float, ...] | None, str]


@dataclass(frozen=True)
class Block:
    """Settings of some rows of a tensor: the queries or the keys of a packed projection.

    The other rows have the settings of the tensor.
    """

    kind: str  # "queries" or "keys"
    axis: int
    size: int  # number of rows of the tensor along the axis
    ranges: tuple[tuple[int, int], ...]  # rows: first, and one past the last
    init_std: float
    constant: float | None
    lr: float
    weight_decay: float
    eps: Eps
    factors: Factors

    @property
    def share(self) -> float:
        """Fraction of the tensor's entries."""
        return sum(last - first for first, last in self.ranges) / self.size


@dataclass(frozen=True)
class Row:
    """Settings of one tensor, and the reason."""

    name: str
    role: Role
    group: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...] | None
    growth: Growth
    depth: float  # layers of its stack, target over base
    multiplier: float
    init_std: float  # root mean square at initialization
    lr: float
    weight_decay: float
    eps: Eps
    reason: str
    optimizer: str
    uses: tuple[str, ...]  # the modules that hold it
    constant: float | None  # its initial value, if that is a constant (zeros, ones)
    base_name: str | None
    base_std: float | None
    trained: bool = True
    init_scale: float = 1.0  # the user's factor of the initial size; part of `init_std`
    factors: Factors = field(default_factory=Factors)
    # factor of the initial size that the model's own code sets at this depth (depth=None)
    own_depth: float = 1.0
    # size in the base at which the output is of order one; None for gains, biases, unknown fan-in
    order_one: float | None = None
    draw: Draw | None = None  # how values are drawn, if a start replaces those of the model's code
    blocks: tuple[Block, ...] = ()  # rows with settings of their own
    # its output is a matrix, whose fan-in and fan-out are in `growth` (a hypernetwork)
    writes_matrix: bool = False
    # factors of batch size, tokens and further axes; part of lr, weight_decay, eps and betas
    horizon: Factors = field(default_factory=Factors)
    betas: tuple[float, ...] | None = None  # of the optimizer's averages, if an axis changes them
    origins: tuple[Origin, ...] = ()  # factors by axis; their product makes the row
    # part of `multiplier` that other tensors hold: the norm before a tied readout
    carried_multiplier: float = 1.0
    # convention of Muon's learning rate, if it is not torch's default (`optimizers.muon_rates`)
    convention: str | None = None

    @property
    def hook_multiplier(self) -> float:
        """Part of the multiplier that a hook applies in the forward pass; 1 without a hook."""
        return self.multiplier / self.carried_multiplier

    @property
    def default_lr(self) -> float:
        """Learning rate that makes the same steps in the default convention of Muon."""
        if self.convention is None:
            return self.lr
        return convert_muon_lr(self.lr, self.shape, self.convention, "original")

    def rms(self, value: "Callable[[Row | Block], float]") -> float:
        """Return the root mean square of a setting over all entries of the tensor."""
        if not self.blocks:
            return value(self)
        rest = 1.0
        total = 0.0
        for block in self.blocks:
            rest -= block.share
            total += block.share * value(block) ** 2
        return (total + rest * value(self) ** 2) ** 0.5

    @property
    def row_settings(self) -> RowSettings | None:
        """Factors of the blocks, as the entry `rows` of a parameter group."""
        if not self.blocks:
            return None
        record = record_named(self.optimizer)
        law = record.update_law
        blocks: list[RowSettings] = []
        for block in self.blocks:
            # a step relative to the size of the weights uses that of the whole tensor
            if self.lr:
                step = block.lr / self.lr
            else:
                step = 1.0
            if law.weight:
                step *= (block.factors.std / self.factors.std) ** float(law.weight)
            shrinkage = block.lr * block.weight_decay
            whole = self.lr * self.weight_decay
            gradient = 1.0
            if not law.gradient and isinstance(self.eps, float) and isinstance(block.eps, float):
                if block.eps:
                    gradient = self.eps / block.eps
                else:
                    gradient = 1.0
            settings = {
                "ranges": [list(span) for span in block.ranges],
                "lr": step,
                "weight_decay": shrinkage / (whole * step) if whole else 1.0,
                "gradient": 1.0 if law.spectral else gradient,
            }
            if any(abs(settings[name] - 1) > 1e-12 for name in ("lr", "weight_decay", "gradient")):
                blocks.append(settings)
        if not blocks:
            return None
        return {
            "axis": self.blocks[0].axis,
            "size": self.blocks[0].size,
            "decoupled": record.law not in ("sgd", "adam"),
            "blocks": blocks,
        }

    @property
    def eps_name(self) -> str:
        """Name of the setting of the optimizer's groups that holds eps."""
        record = find_record(self.optimizer)
        return "eps" if record is None else record.eps_name

    @property
    def averages(self) -> dict[str, float | tuple[float, ...]]:
        """Betas of the optimizer's averages as a setting of its groups; empty if none changes."""
        if self.betas is None:
            return {}
        return record_named(self.optimizer).with_betas(self.betas)

    @property
    def rule_std(self) -> float:
        """Initial size without the user's factor."""
        return self.init_std / self.init_scale

    @property
    def grows(self) -> str:
        """Growth in words: `in x4, out x4`."""
        sides: list[str] = []
        if self.growth.fan_in != 1:
            sides.append(f"in x{self.growth.fan_in:.4g}")
        if self.growth.fan_out != 1:
            sides.append(f"out x{self.growth.fan_out:.4g}")
        return ", ".join(sides)

    @property
    def initial_growth(self) -> float:
        """Factor by which the initial values, times their multiplier, differ from the base's."""
        std = self.rms(lambda part: part.factors.std)
        return self.factors.multiplier * std * self.own_depth

    def output_growth(self, bias: "Row | None") -> float | None:
        """Return the factor by which the initial output of a module with this weight grows.

        The input is assumed not to change. The result is None if the factor is unknown.
        """
        if self.role == "fixed" or self.base_shape is None:
            return None
        size = self.initial_growth
        if self.role == "vector" or self.writes_matrix:
            return size
        if self.role == "readout" and self.factors.gauge != 1:
            # the forward code multiplies before or after the readout; it is unknown which
            return None
        if bias is not None and bias.role == "fixed" and bias.init_std > 0:
            return None  # a bias of constant size hides a shrinking readout
        if self.role == "embedding":
            # a tensor of several modules is tied, and this module may be the readout
            if len(self.uses) > 1:
                return None
            return size
        return self.growth.fan_in**0.5 * size


def in_groups(rows: Sequence[Row]) -> str:
    """Return the numbers of tensors and of parameter groups in words: `52 tensors in 3 groups`."""
    groups = len({_group_key(row) for row in rows})
    return f"{len(rows)} tensor{'s' * (len(rows) != 1)} in {groups} group{'s' * (groups != 1)}"


@dataclass(frozen=True)
class Multiplier:
    """A factor in the forward pass, as a removable hook on the `input` or `output` of a module."""

    module: str
    value: float
    side: str
    reason: str


@dataclass(frozen=True)
class Settings:
    """Options of a plan as plain values, for its file."""

    rule: str
    optimizer: str
    lr: float
    weight_decay: float
    eps: Eps
    gauge: str = "folded"
    depth: str | None = None
    decay: str = "independent"
    horizon: str | None = None  # rule for batch size and tokens
    # base and target on axes beside width and depth: batch, tokens, and those of third parties
    axes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    critical_batch: float | None = None
    # rules for numbers of experts, ranks of adapters, queries per key
    expert_rule: str | None = "mup"
    rank_rule: str | None = "mup"
    repetition_rule: str | None = "mup"
    decay_vectors: bool = True
    relative: bool = True
    # whole numbers of the base's Hugging Face configuration
    base_sizes: Mapping[str, object] | None = None
    # class and options that the user passed, if they are not torch's class alone
    user_class: str | None = None
    # settings that differ between tensors: {"lr": {"default": ..., "embedding": ...}}
    per_tensor: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # start of the base: a name, a size, or either by key; None: the model's own initial values
    init: str | float | Mapping[str, str | float] | None = None

    @property
    def label(self) -> str:
        """Name of the optimizer, with the user's class if any: `adamw (my_package.MyAdam)`."""
        return label(self.optimizer, self.user_class)


def _new_token() -> str:
    return uuid4().hex


@dataclass(frozen=True)
class Plan:
    """Initial sizes, learning rates, weight decays and multipliers for all tensors of a model.

    Print it, `save` it, `apply` it once, and train with its `optimizer`. A plan is an immutable
    value; `apply` marks the model, not the plan.
    """

    settings: Settings
    rows: tuple[Row, ...]
    headline: str
    notes: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()  # notes that need a change in the model's code
    multipliers: tuple[Multiplier, ...] = ()
    probe_summary: str = "probe: not run"
    observations: "tuple[Observation, ...]" = ()
    model: nn.Module | None = field(default=None, repr=False)
    # sizes when the plan was made
    planned: "Mapping[str, Initial | None]" = field(default_factory=dict, repr=False)
    # class and options that the user passed
    user_class: type[Optimizer] | None = field(default=None, repr=False)
    user_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # the plan was loaded from a file, attached or copied after `apply`
    was_applied: bool = field(default=False, repr=False)
    # `apply` marks the model with it
    token: str = field(default_factory=_new_token, repr=False, compare=False)

    @property
    def applied(self) -> bool:
        """Whether the plan was applied: to its model, or before it was loaded or attached."""
        if self.was_applied:
            return True
        return self.model is not None and apply.mark_of(self.model) == self.token

    def __getstate__(self) -> dict[str, object]:
        """Return the state of a copy, whose model has no mark: `was_applied` replaces it."""
        return {**self.__dict__, "was_applied": self.applied}

    # --- reading ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Plan of {len(self.rows)} tensors: {self.headline}>"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        table = [text.COLUMNS, *text.compressed(self.rows)]
        return notebook_html(self.headline, [table], [*self.notes, text.LEGEND, self.probe_summary])

    def __str__(self) -> str:
        return printable(text.render(self))

    def table(self, *, wide: bool = False, origins: bool | None = None) -> str:
        """Return the plan as text, as `print(plan)` shows it.

        `wide=True` gives every row one line, however long. `origins` says whether a second table
        lists every factor by its origin; by default it does if the plan has axes beside width and
        depth, or another convention of weight decay than "independent" and "proportional".
        """
        return printable(text.render(self, wide, origins))

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(
            f"no tensor is named {name!r}; the plan has {self.rows[0].name}, ...,"
            f" {self.rows[-1].name}"
        )

    def to_frame(self) -> "pandas.DataFrame":
        """Return a data frame with one line per tensor and the columns of `Row`."""
        import pandas

        return pandas.DataFrame([text.record(row) for row in self.rows])

    @property
    def start(self) -> StartReport:
        """Initial sizes of the base, compared with the sizes that make outputs of order one.

        `measure_start` adds activations, attention scores and logits.
        """
        return start_report(self.rows)

    def measure_start(self, inputs: ModelInputs) -> StartReport:
        """Return `start` with the activations, attention scores and logits of one forward pass.

        They are those of the model as it is now: call it after `apply`, and before training.
        `inputs` are those of the model, as for `plan`.
        """
        return self.start.with_outputs(measure_outputs(self.bound(), call_inputs(inputs)))

    # --- applying and training --------------------------------------------------------------------

    def apply(self, *, fresh: bool = False) -> nn.Module:
        """Initialise the model in place and install the multipliers, once.

        Pass `fresh=True` if the weights are a new initialization although they look trained, or
        although this plan was saved after `apply`.
        """
        model = self.bound()
        apply.apply(self, model, fresh)
        return model

    def attach(self, model: nn.Module) -> "Plan":
        """Return the same plan for another instance: a reloaded model, a deep copy.

        Nothing is rescaled; multipliers are installed if the plan has been applied.
        """
        other = replace(
            self,
            model=unwrap(model),
            planned=apply.sizes_now(self.tensors(model)),
            was_applied=self.applied,
        )
        if other.applied:
            apply.install(other, other.bound())
        return other

    def remove_multipliers(self) -> None:
        """Remove the hooks. Without its multipliers, the model computes something else."""
        apply.remove(self, self.bound())

    def bake(
        self, model: nn.Module | None = None, *, inputs: "ExampleBatch | None" = None
    ) -> nn.Module:
        """Return a plain copy of the model: no hooks, the same outputs.

        Multipliers become part of the weights, so that the state_dict loads in the plain class.
        `model` is the model that was trained with this plan, by default the plan's own. `inputs` is
        an example batch; it is needed only to find the norm before a tied readout of a model that
        accepts no plain batch of token indices.
        """
        from orderone.planning.bake import bake

        return bake(self, self.bound() if model is None else model, inputs)

    def param_groups(self, model: nn.Module | None = None) -> list[dict[str, Any]]:
        """Return groups for any torch optimizer: `torch.optim.AdamW(plan.param_groups())`.

        A group of packed projections may have an entry `rows`: learning rates of their queries.
        Every torch optimizer of this process obeys it (`orderone.optimizers.row_rates`).
        """
        return _param_groups(self.rows, self.tensors(model))

    def optimizer(self, *, model: nn.Module | None = None, **options: Any) -> Optimizer:
        """Return the optimizer of this plan: torch's, or the class that the plan was made for.

        `options` are passed to its constructor (betas, momentum, fused, ...).
        """
        names_of_eps = {row.eps_name for row in self.rows}
        for name in ("lr", "weight_decay", "eps", *names_of_eps):
            if name in options:
                message = (
                    f"optimizer: {name} differs between groups; pass it to the plan instead:"
                    f" plan(..., {name}={options[name]!r})"
                )
                raise InputError(message, "setting-of-the-plan", argument=name)
        for name in options:
            self._check_option(name)
        options = {**self.user_options, **options}
        if record_named(self.settings.optimizer).rest is not None:
            made = self._with_rest(model, options)
        else:
            made = self._one(model, options)
        check_options(made)
        _must_decay_as_planned(made, self)
        schedule.check_conventions(self, made, model)
        if self.user_class is not None and model is None:
            schedule.check(self, made, None, None)  # its constructor may have made other groups
        if not self.applied:
            apply.remind(self, self.bound() if model is None else unwrap(model), made)
        return made

    def _check_option(self, name: str) -> None:
        """Raise an InputError if the plan scales this option of the optimizer."""
        for row in self.rows:
            if row.betas is not None and record_named(row.optimizer).averages == name:
                message = (
                    f"optimizer: the plan scales {name} with batch size and tokens; pass the value"
                    " of the base to the plan instead:"
                    f" plan(..., optimizer=functools.partial(AdamW, {name}=...))"
                )
                raise InputError(message, "setting-of-the-plan", argument=name)

    def _class(self) -> type[Optimizer]:
        if self.user_class is not None:
            return self.user_class
        if self.user_options:
            return CLASSES[self.settings.optimizer]
        known = registered_name(self.settings.optimizer)
        if known is not None and self.settings.user_class == known.name:
            return known.torch_class
        if self.settings.user_class is not None:
            message = (
                f"optimizer: this plan was made for {self.settings.user_class}, and a plan file"
                " contains no classes; construct the optimizer from plan.param_groups()"
            )
            raise InputError(message, "class-not-saved")
        return CLASSES[self.settings.optimizer]

    def _one(self, model: nn.Module | None, options: Mapping[str, Any]) -> Optimizer:
        # defaults for groups that are added later
        tuned = {"lr": self.settings.lr, "weight_decay": self.settings.weight_decay}
        return construct(self._class(), self.param_groups(model), tuned, options)

    def _with_rest(self, model: nn.Module | None, options: Mapping[str, Any]) -> Optimizer:
        tensors = self.tensors(model)
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.optimizer, []).append(row)
        parts: dict[str, Optimizer] = {}
        for name, rows_of_part in rows.items():
            param_groups = _param_groups(rows_of_part, tensors)
            if name == self.settings.optimizer:
                shapes = [row.shape for row in rows_of_part]
                kind = class_for(self._class(), shapes, options.get(CONVENTION))
                parts[name] = construct(kind, param_groups, {}, options)
            else:
                parts[name] = construct(CLASSES[name], param_groups, {}, {})
        return CombinedOptimizer(parts)

    def export(
        self,
        target: str,
        *,
        allow_loss: Sequence[str] = (),
        names: "Names" = None,
        min_lr: float = 0.0,
    ) -> "Export":
        """Return the plan as patterns of names, in the format of another trainer.

        Args:
            target: "torchtitan", "megatron", "nemo", "olmo-core", "deepspeed", "huggingface",
                "json" or "yaml".
            allow_loss: What to leave out if the format cannot hold it: "eps", "multipliers",
                "optimizer", "rows", "betas", "options". Otherwise an error names it.
            names: Names of the tensors in the trainer: a function or a mapping from the names of
                the plan, or "as-is" if the trainer has these. By default the documented names
                (Llama, Qwen3, Mixtral and a few others). For models without, torchtitan and
                OLMo-core get the names of the model, with a note, and Megatron needs `names`.
            min_lr: Smallest learning rate of the schedule, for tensors with the learning rate of
                the plan; that of other tensors is in proportion. Refused for other trainers than
                Megatron, whose schedules have it.
        """
        from orderone.planning.exports import export

        return export(self, target, allow_loss=allow_loss, names=names, min_lr=min_lr)

    def check(
        self,
        optimizer: Optimizer,
        scheduler: "LRScheduler | None" = None,
        *,
        steps: int | None = None,
    ) -> None:
        """Raise BrokenRatios if the optimizer or the scheduler changes the ratios of the plan.

        Every step of the scheduler is simulated; `steps` limits their number.
        """
        schedule.check(self, optimizer, scheduler, steps)

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, with a format version."""
        from orderone.planning import file

        file.save(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> "Plan":
        """Read a saved plan. It has no model: `attach` one, or use the plan as a base."""
        from orderone.planning import file

        return file.load(path)

    # --- the model --------------------------------------------------------------------------------

    def bound(self) -> nn.Module:
        """Return the model of the plan; raise an InputError if it has none."""
        if self.model is None:
            message = (
                "this plan was loaded from a file and has no model; call plan.attach(model) first"
            )
            raise InputError(message, "plan-without-model")
        return self.model

    def tensors(self, model: nn.Module | None = None) -> "dict[str, Tensor]":
        """Return the present parameters, after a check that they are those of the rows.

        Sharding and `to_empty` replace parameters.
        """
        if model is None:
            model = self.bound()
        tensors = tensors_of(model)
        try:
            _same_tensors(self.rows, {name: tuple(x.shape) for name, x in tensors.items()})
        except InputError as error:
            if _is_flattened(model):
                raise InputError(_FLATTENED, "flattened-by-fsdp1", argument="model") from error
            raise
        return tensors


_FLATTENED = (
    "model: FullyShardedDataParallel (FSDP1) has flattened and joined its tensors, and a plan has a"
    " learning rate for each of them; use FSDP2: torch.distributed.fsdp.fully_shard, or"
    " fsdp_version=2 of Accelerate"
)


def _is_flattened(model: nn.Module) -> bool:
    """Return whether FSDP1 wraps the model or a part of it."""
    if not distributed.is_available():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def _same_tensors(rows: Sequence[Row], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an InputError unless the model has the tensors of the plan."""
    planned = {row.name: row for row in rows}
    for name, shape in shapes.items():
        if name not in planned:
            remedy = "make a new plan"
            for row in rows:
                if name.rpartition(".")[0] in row.uses:
                    remedy = f"it was tied to {row.name}; tie it again (model.tie_weights())"
                    break
            message = f"model: the plan has no row for its tensor {name}; {remedy}"
            raise InputError(message, "tensors-changed", argument="model")
        if shape != planned[name].shape:
            message = (
                f"model: {name} has shape {shape}, and the plan is for {planned[name].shape}; make"
                " a new plan"
            )
            raise InputError(message, "tensors-changed", argument="model")
    for name in planned:
        if name not in shapes:
            message = f"model: it has no tensor {name}, which the plan has; make a new plan"
            raise InputError(message, "tensors-changed", argument="model")


# --- parameter groups of torch.optim --------------------------------------------------------------


def _param_groups(rows: Sequence[Row], tensors: "Mapping[str, Tensor]") -> list[dict[str, Any]]:
    """Return parameter groups: tensors with equal settings share one, with names for logging."""
    merged: dict[GroupKey, dict[str, Any]] = {}
    for row in rows:
        key = _group_key(row)
        group = merged.setdefault(
            key, {"params": [], "names": [], "roles": {}, **_group_settings(row)}
        )
        group["params"].append(tensors[row.name])
        group["names"].append(row.name)
        group["roles"][row.role] = None
    for group in merged.values():
        group["name"] = "+".join(group.pop("roles"))
    return list(merged.values())


def _group_key(row: Row) -> GroupKey:
    rows = str(row.row_settings)
    return (row.optimizer, row.lr, row.weight_decay, row.eps, row.betas, rows)


def _group_settings(row: Row) -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay}
    if row.eps is not None:
        settings[row.eps_name] = row.eps
    settings |= row.averages
    if row.convention is not None:
        settings[CONVENTION] = row.convention
    rows = row.row_settings
    if rows is not None:
        row_rates.activate()
        settings[row_rates.KEY] = rows
    return settings


def fused_options(plan: Plan) -> dict[str, Any]:
    """Return the option `fused=True` if the optimizer of `plan` is a class of torch that has it.

    torch's fused kernels take real numbers and dense gradients only, and ignore gaps between the
    entries of a parameter.
    """
    if plan.settings.user_class is not None or plan.settings.optimizer not in FUSED:
        return {}
    tensors = plan.tensors().values()
    if any(tensor.is_complex() or not fills_its_memory(tensor) for tensor in tensors):
        return {}
    if has_sparse_gradients(plan.bound()):
        return {}
    return {"fused": True}


def _must_decay_as_planned(made: Optimizer, plan: Plan) -> None:
    """Raise an InputError if Adam or a subclass decouples weight decay, or if AdamW does not.

    Such an optimizer follows another update law than the plan.
    """
    record = record_named(plan.settings.optimizer)
    other = record.other_decay
    planned = plan.user_options.get("decoupled_weight_decay", record.decouples_decay)
    for group in made.param_groups:
        if other is not None and group.get("decoupled_weight_decay", planned) != planned:
            message = (
                f"optimizer: {class_name(type(made))} applies weight decay as {other} does, and"
                f" the plan is for {plan.settings.optimizer}; make the plan for it:"
                f" plan(..., optimizer={other!r}); construct a class of yours from"
                " plan.param_groups()"
            )
            raise InputError(message, "other-weight-decay", argument="optimizer")
