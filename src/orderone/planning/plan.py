"""A plan: one row for every tensor, with its settings and the reason. It changes nothing until
`apply`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os import PathLike
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.core.notebook import notebook_html
from orderone.core.text_table import printable
from orderone.observe.batches import ModelInputs, call_inputs
from orderone.observe.inventory import unwrap
from orderone.optimizers.equal_strides import fills_its_memory
from orderone.optimizers.table import FUSED, Eps, label
from orderone.planning import apply, plan_optimizer, schedule, text
from orderone.planning.param_groups import param_groups
from orderone.planning.plan_row import Row
from orderone.planning.same_tensors import planned_tensors
from orderone.planning.start_outputs import measure_outputs
from orderone.planning.start_sizes import StartReport, start_report
from orderone.planning.supported import has_sparse_gradients

if TYPE_CHECKING:
    import pandas
    from torch import Tensor
    from torch.optim.lr_scheduler import LRScheduler

    from orderone.planning.exports import Export
    from orderone.planning.exports.content import Names
    from orderone.planning.init_check import Observation
    from orderone.planning.initial import Initial
    from orderone.planning.options import ExampleBatch


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
        near = get_close_matches(str(name), [row.name for row in self.rows], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise KeyError(
            f"no tensor is named {name!r}; the plan has {self.rows[0].name}, ...,"
            f" {self.rows[-1].name}{hint}"
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
        return param_groups(self.rows, self.tensors(model))

    def optimizer(self, *, model: nn.Module | None = None, **options: Any) -> Optimizer:
        """Return the optimizer of this plan: torch's, or the class that the plan was made for.

        `options` are passed to its constructor (betas, momentum, fused, ...).
        """
        return plan_optimizer.make_optimizer(self, model, options)

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
        return planned_tensors(self.rows, self.bound() if model is None else model)


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
