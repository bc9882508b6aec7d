"""Options of `plan` as the user passes them; `read` validates them into a `Request`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Exact, Name, UserInput
from orderone.observe.inventory import read_patterns
from orderone.optimizers.table import Algorithm, algorithm
from orderone.planning.horizon import SDE, AxesInput, CriticalBatch, Horizon, PairInput
from orderone.planning.request import EpsOption, Request
from orderone.planning.settings import INIT_SCALE, LR, WEIGHT_DECAY, Setting, SettingInput
from orderone.planning.start_setting import InitInput, StartSetting
from orderone.planning.supported import check_model
from orderone.rules.axes import (
    DECAY,
    DEPTH_RULES,
    EXPERT_RULES,
    INDEPENDENT,
    RANK_RULES,
    REPETITION_RULES,
    SQRT,
)
from orderone.rules.composition import Composition, find_composition
from orderone.theory.exponents import GAUGES, Parameterization
from orderone.theory.exponents.updates import update_law

Model: TypeAlias = Annotated[nn.Module, UserInput]
Rule: TypeAlias = Annotated[str | Parameterization | Composition, UserInput]
OptimizerKind: TypeAlias = Annotated[str | type[Optimizer] | partial[Optimizer], UserInput]
Patterns: TypeAlias = Annotated[str | Iterable[str], UserInput]
Overrides: TypeAlias = Annotated[Mapping[str, str], UserInput]
ExampleBatch: TypeAlias = Annotated[Tensor | Sequence[object] | Mapping[str, object], UserInput]
OrderOneConstants: TypeAlias = Annotated[Mapping[str, float], UserInput]

MUP = "mup"  # default rule for experts, ranks and repetitions


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Every option of `plan` except the model and its base, as the user passes it.

    The fields have the names, the order and the defaults of the keywords of `plan`.
    """

    rule: Rule = "mup"  # a name of `rules.names()`, or a rule of `rules.custom`
    optimizer: OptimizerKind = "adamw"  # a name, or a class that is known or registered
    lr: SettingInput | None = None  # as tuned on the base; None: the default of torch.optim
    weight_decay: SettingInput | None = None  # likewise
    depth: Name | None = None  # "sqrt", "completep", or None: as the model's code
    eps: EpsOption | None = None  # like lr
    expert_rule: Name | None = (
        "mup"  # rule for the number of experts: a name of EXPERT_RULES, or None
    )
    rank_rule: Name | None = "mup"  # rule for the rank of adapters
    repetition_rule: Name | None = "mup"  # rule for the number of queries that share a key
    gauge: Name = "folded"  # "folded", "unit" or "paper"
    decay: Name = "independent"  # "proportional", "timescale", "sqrt" or "inverse-width"
    batch: PairInput | None = None  # batch sizes of base and target
    tokens: PairInput | None = None  # training tokens of base and target
    horizon: Name | None = "sde"  # rule for batch and tokens: "sde", "power" or None
    critical_batch: CriticalBatch | None = None  # beyond it, the plan has a note
    axes: AxesInput | None = None  # sizes on further axes: {"name": (base, target)}
    no_decay: Patterns | None = ()  # patterns of tensors without weight decay
    decay_vectors: bool = True  # whether tensors of fewer than two dimensions decay, as in torch
    init_scale: SettingInput | None = None  # factor of the base's initial sizes
    init: InitInput | None = None  # start of the base; None: that of its code
    overrides: Overrides | None = None  # {"pattern": role}
    inputs: ExampleBatch | None = None  # example batch for the forward pass
    probe: bool = True  # whether to run the forward pass at all
    score_power: Exact | None = None  # attention scores are divided by head_size^score_power
    C: OrderOneConstants | None = None  # absolute mode: constants of the initial variances
    Lambda: OrderOneConstants | None = None  # absolute mode: constants of the learning rates

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, object]) -> "PlanOptions":
        """Return the options with these names; raise an InputError if a name is unknown."""
        for name in keywords:
            one_of(name, ("model", "base", *OPTION_NAMES), "option of plan")
        return cls(**keywords)  # pyright: ignore[reportArgumentType]

    def read(self, model: Model) -> Request:
        """Return the validated options for `model`."""
        if not isinstance(model, nn.Module):
            message = f"model: expected an nn.Module, got {type(model).__name__}"
            raise InputError(message + model_remedy(model), "wrong-type", argument="model")
        optimizer = algorithm(self.optimizer)
        check_model(model, optimizer)
        recipe = _read_rule(self.rule)
        depth = _chosen("depth", self.depth, recipe.depth, None)
        decay = _chosen("decay", self.decay, recipe.decay, INDEPENDENT)
        horizon = _chosen("horizon", self.horizon, recipe.horizon, SDE)
        expert_rule = _chosen("expert_rule", self.expert_rule, recipe.expert_rule, MUP)
        rank_rule = _chosen("rank_rule", self.rank_rule, recipe.rank_rule, MUP)
        repetition_rule = _chosen(
            "repetition_rule", self.repetition_rule, recipe.repetition_rule, MUP
        )
        return Request(
            rule=recipe.rule,
            name=recipe.name,
            algorithm=optimizer,
            lr=Setting.read(LR, self.lr, optimizer.names),
            weight_decay=Setting.read(WEIGHT_DECAY, self.weight_decay, optimizer.names),
            init_scale=Setting.read(INIT_SCALE, self.init_scale, optimizer.names),
            init=StartSetting.read(self.init),
            eps=self.eps,
            depth=None if depth is None else one_of(depth, DEPTH_RULES, "depth"),
            expert_rule=_optional(expert_rule, EXPERT_RULES, "expert_rule"),
            rank_rule=_optional(rank_rule, RANK_RULES, "rank_rule"),
            repetition_rule=_optional(repetition_rule, REPETITION_RULES, "repetition_rule"),
            gauge=one_of(self.gauge, GAUGES, "gauge"),
            decay=_read_decay(decay, optimizer),
            horizon=Horizon.read(
                horizon, self.batch, self.tokens, self.critical_batch, self.axes, recipe.axes
            ),
            no_decay=read_patterns(self.no_decay, model, "no_decay"),
            overrides=_read_overrides(self.overrides),
            score_power=self.score_power,
            decay_vectors=self.decay_vectors,
        )


def _read_rule(rule: Rule) -> Composition:
    """Return a rule as a composition, perhaps of the rule alone."""
    composed = find_composition(rule)
    if composed is not None:
        return composed
    if isinstance(rule, Parameterization):
        return Composition(rule.name, rule)
    return Composition(str(rule).lower(), str(rule))


def _chosen(
    option: str, value: Name | None, of_rule: str | None, default: str | None
) -> Name | None:
    """Return the value of an option: the user's, that of a composed rule, or the default."""
    if of_rule is None or value == of_rule:
        return value
    if value == default:
        return of_rule
    raise InputError(
        f"{option}: the composed rule has {option}={of_rule!r}, and {value!r} was passed; leave"
        f" {option} out, or compose the rule without it",
        "option-of-the-rule",
        argument=option,
    )


def _read_decay(decay: object, optimizer: Algorithm) -> str:
    """Return a convention of weight decay; raise an InputError if the optimizer does not fit it."""
    name = one_of(decay, DECAY, "decay")
    if name == SQRT and optimizer.update_law != update_law("adam"):
        raise InputError(
            f"decay: 'sqrt' was measured with AdamW, and {optimizer.label} has another update law;"
            " pass decay='independent' or 'inverse-width'",
            "decay-without-law",
            argument="decay",
        )
    return name


def pair_remedy(value: object) -> str:
    """Return what to do with (model, optimizer), which some `build` functions return, else ''."""
    if not isinstance(value, (tuple, list)) or not value or not isinstance(value[0], nn.Module):
        return ""
    return (
        "; pass the model alone, the first entry, and its optimizer as optimizer=torch.optim.AdamW"
        " (a class or a name), lr=..., weight_decay=...; plan.optimizer() then constructs it"
    )


def model_remedy(value: object) -> str:
    """Return how to make a model from what was passed instead of one, or ''."""
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"; pass an instance: {value.__name__}(...)"
    if hasattr(value, "model_type"):  # a configuration of Hugging Face
        return "; build the model from it: AutoModelForCausalLM.from_config(config)"
    if isinstance(value, str):
        return "; pass the model itself, not its name"
    if callable(value):
        return "; call the function, and pass the model that it returns"
    return pair_remedy(value)


OPTION_NAMES: tuple[str, ...] = tuple(field.name for field in fields(PlanOptions))


def _optional(name: Name | None, names: Sequence[str], argument: str) -> str | None:
    return None if name is None else one_of(name, names, argument)


def _read_overrides(overrides: Overrides | None) -> dict[str, str]:
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        message = f'overrides: expected {{"pattern": role}}, got {overrides!r}'
        raise InputError(message, "wrong-type", argument="overrides")
    return dict(overrides)
