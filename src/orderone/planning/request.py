"""Validated options of `plan`, with their values for one optimizer or tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache, partial
from inspect import signature
from typing import Annotated, TypeAlias

from torch.optim import Optimizer

from orderone import rules
from orderone.core.errors import InputError, one_of, with_code
from orderone.core.exact import HALF, ONE, exact
from orderone.core.inputs import Exact, UserInput
from orderone.core.roles import Role
from orderone.optimizers.table import Algorithm, Eps, TensorScale
from orderone.planning.horizon import NO_HORIZON, Horizon, times
from orderone.planning.plan import Settings
from orderone.planning.plan_row import Row
from orderone.planning.roles.evidence import Evidence
from orderone.planning.settings import (
    DEFAULT,
    INIT_SCALE,
    LR,
    WEIGHT_DECAY,
    Setting,
    SettingInput,
    Subject,
    nonnegative,
)
from orderone.planning.start_setting import KEEP, KEPT, InitInput, StartSetting
from orderone.rules.axes import Factors, Growth, decay_factor
from orderone.theory.exponents import MATRIX_ROLES, Parameterization, UpdateLaw, canonical, solve

EpsOfOne: TypeAlias = float | Sequence[float | None]
EpsOption: TypeAlias = Annotated[EpsOfOne | Mapping[str, EpsOfOne], UserInput]


@dataclass(frozen=True)
class Request:
    """Validated options. The methods return their values for one optimizer or tensor."""

    rule: str | Parameterization
    name: str  # of the rule
    algorithm: Algorithm
    lr: Setting
    weight_decay: Setting
    init_scale: Setting
    eps: EpsOption | None
    depth: str | None
    gauge: str
    decay: str
    no_decay: tuple[str, ...]
    overrides: Mapping[str, str]
    score_power: Exact | None
    decay_vectors: bool = True
    init: StartSetting = KEPT
    expert_rule: str | None = "mup"
    rank_rule: str | None = "mup"
    repetition_rule: str | None = "mup"
    horizon: Horizon = NO_HORIZON
    # optimizers by tensor, where the user has divided the tensors between several
    assigned: Mapping[str, Algorithm] = field(default_factory=dict)

    def parameterization(self, law: str | UpdateLaw) -> Parameterization:
        """Return the rule with learning rates for this update law: derived, or the user's."""
        return _parameterization(self.rule, law)

    @property
    def power(self) -> float:
        """Power of the head size that attention scores are divided by.

        It is 1 if features move at order one, as in muP, and 1/2 otherwise (Stratos,
        "Scale-Invariant Parameterizations", section 2).
        """
        if self.score_power is not None:
            return float(exact(self.score_power, "score_power"))
        if _moves_features(self.parameterization("adam")):
            return float(ONE)
        return float(HALF)

    # --- settings per tensor ----------------------------------------------------------------------

    @property
    def per_tensor(self) -> tuple[Setting, ...]:
        """Settings that may differ between tensors."""
        return (self.lr, self.weight_decay, self.init_scale)

    @property
    def is_uniform(self) -> bool:
        """Whether all tensors have the same settings, and initial sizes are those of the rule."""
        same = all(setting.is_uniform for setting in self.per_tensor)
        return same and self.init_scale.default == 1 and self.init.keeps_all

    @property
    def uses_roles(self) -> bool:
        """Whether optimizer, start or settings of a tensor depend on its role at the base."""
        by_role = any(setting.roles for setting in self.per_tensor) or self.init.roles
        is_divided = len(self.algorithm.names) > 1 and not self.assigned
        return bool(by_role or is_divided or self.init.default not in (None, KEEP))

    @property
    def uniform(self) -> "Request":
        """The request with initial sizes of the rule and without keys of single tensors."""
        return replace(
            self,
            lr=self.lr.uniform,
            weight_decay=self.weight_decay.uniform,
            init_scale=Setting.read(INIT_SCALE, None, ()),
            init=StartSetting.read(None),
        )

    def tuned(
        self,
        *,
        lr: SettingInput | None,
        weight_decay: SettingInput | None,
        init_scale: SettingInput | None,
        init: InitInput | None,
        eps: EpsOption | None,
    ) -> "Request":
        """Return the request with these values of the settings that a sweep tunes."""
        optimizers = self.algorithm.names
        return replace(
            self,
            lr=Setting.read(LR, lr, optimizers),
            weight_decay=Setting.read(WEIGHT_DECAY, weight_decay, optimizers),
            init_scale=Setting.read(INIT_SCALE, init_scale, optimizers),
            init=StartSetting.read(init),
            eps=eps,
        )

    def check_settings(self, tensors: Sequence[Subject]) -> None:
        """Raise an InputError if a key of a setting fits no tensor."""
        self.lr.check(tensors)
        self.init_scale.check(tensors)
        self.init.check(tensors)
        self.weight_decay.check([tensor for tensor in tensors if self._decays(tensor.name)])

    def settings_reason(self, tensor: Subject) -> tuple[str, ...]:
        """Return which keys set the values of a tensor, for its reasons."""
        settings = [self.lr, self.init_scale]
        if self._decays(tensor.name):
            settings.append(self.weight_decay)
        by_key: dict[str, list[str]] = {}
        for setting in settings:
            key = setting.of(tensor).key
            if key is not None:
                by_key.setdefault(key, []).append(setting.name)
        return tuple(f"{' and '.join(names)} set by {key!r}" for key, names in by_key.items())

    def lr_of(self, optimizer: Algorithm, tensor: Subject) -> float:
        """Return the base's learning rate of a tensor of this optimizer."""
        lr = self.lr.of(tensor).value
        if lr is None:
            lr = optimizer.lr
        if lr is None:
            raise InputError(
                f"lr: {optimizer.label} has no default learning rate; pass lr=", argument="lr"
            )
        return lr

    def _decays(self, tensor_name: str) -> bool:
        return not any(fnmatch(tensor_name, pattern) for pattern in self.no_decay)

    def weight_decay_of(self, optimizer: Algorithm, tensor: Subject) -> float:
        """Return the base's weight decay for a tensor of this optimizer."""
        if not self._decays(tensor.name):
            return 0.0
        decay = self.weight_decay.of(tensor).value
        if decay is None:
            decay = optimizer.weight_decay
        if decay:
            _check_decay(optimizer)
        return decay

    def init_scale_of(self, tensor: Subject, dimensions: int) -> float:
        """Return the factor of a tensor's initial size.

        A default is for matrices and lookup tables; gains and biases have to be named by a key.
        Frozen tensors are not changed.
        """
        choice = self.init_scale.of(tensor)
        if choice.value is None or not tensor.trained:
            return 1.0
        if choice.key is None and dimensions < 2:
            return 1.0
        return choice.value

    def eps_of(self, optimizer: Algorithm) -> Eps:
        """Return the base's eps for tensors of this optimizer.

        A number is for the optimizer that the user named; a mapping has a key for each.
        """
        eps = self._eps_by_name.get(optimizer.name)
        if eps is None or optimizer.eps is None:
            return optimizer.eps
        if not isinstance(optimizer.eps, tuple):
            return nonnegative(eps, "eps")
        if not isinstance(eps, (tuple, list)) or len(eps) != 2:
            raise InputError(
                f"eps: expected a pair for {optimizer.name}, as in torch: (None, 1e-3); got"
                f" {eps!r}",
                argument="eps",
            )
        floor, size = eps
        checked_floor = None if floor is None else nonnegative(floor, "eps")
        return (checked_floor, nonnegative(size, "eps"))

    def lr_notes(self, optimizer: object) -> tuple[str, ...]:
        """Return a note if no learning rate was passed, so that the optimizer's default counts.

        `optimizer` is what the user passed: a partial may have a learning rate. That of an instance
        is not used, because its groups may have several, and a scheduler may have changed them.
        """
        lr = self.algorithm.lr
        if self.lr.plain is not None or lr is None:
            return ()
        if isinstance(optimizer, partial) and LR in optimizer.keywords:
            return ()
        note = (
            f"lr was not passed: the plan scales {lr:g}, the default of {self.algorithm.label}, as"
            " if the base had been tuned to it. Pass lr=, the best learning rate of the base"
        )
        if isinstance(optimizer, Optimizer):
            note += "; those of the optimizer instance that was passed are not used"
        return (with_code(note, "default-lr"),)

    def instance_notes(self, optimizer: object) -> tuple[str, ...]:
        """Return a note if an optimizer was passed as an instance whose settings are not used."""
        if not isinstance(optimizer, Optimizer):
            return ()
        passed = {WEIGHT_DECAY: self.weight_decay.plain, "eps": self.eps}
        parameters = signature(type(optimizer)).parameters
        unused: list[str] = []
        for name, value in optimizer.defaults.items():
            is_new = name in parameters and value != parameters[name].default
            if is_new and name != LR and passed.get(name) is None:
                unused.append(f"{name}={value!r}")
        if not unused:
            return ()
        kind = type(optimizer).__name__
        note = (
            f"the optimizer was passed as an instance, and only its class is used, without"
            f" {', '.join(unused)}. Pass lr=, weight_decay= and eps= to the plan, and other options"
            f" with the class: optimizer=functools.partial({kind}, ...)"
        )
        return (with_code(note, "optimizer-instance"),)

    def eps_notes(self) -> tuple[str, ...]:
        """Return a note if one number was passed as eps and tensors have two optimizers.

        The eps of Muon is compared with norms of matrices, that of AdamW with single entries.
        """
        first, *others = self.algorithm.names
        if self.eps is None or isinstance(self.eps, Mapping) or not others:
            return ()
        note = (
            f"eps={self.eps} is that of {first}; tensors of {others[0]} keep the default. To set"
            f" both, pass eps={{{first!r}: ..., {others[0]!r}: ...}}"
        )
        return (with_code(note, "eps-of-one-optimizer"),)

    @property
    def _eps_by_name(self) -> Mapping[str, object]:
        """The user's eps by optimizer."""
        if self.eps is None:
            return {}
        if not isinstance(self.eps, Mapping):
            return {self.algorithm.name: self.eps}
        for name in self.eps:
            one_of(name, self.algorithm.names, "eps")
        return self.eps

    def decay_factor(
        self, optimizer: Algorithm, factors: Factors, role: Role, growth: Growth
    ) -> float:
        """Return the factor of weight decay for a model that grew, by the convention."""
        by_convention = decay_factor(
            factors,
            optimizer.law,
            self.decay,
            coupled=not optimizer.decouples_decay,
            role=role,
            growth=growth,
        )
        return by_convention * factors.weight_decay

    def horizon_factors(
        self, optimizer: Algorithm, role: Role, trained: bool
    ) -> dict[str, Factors]:
        """Return the factors of batch size, tokens and further axes, by axis."""
        if not trained:
            return {}
        return self.horizon.factors(optimizer, role, self.decay)

    def scaled_eps(self, optimizer: Algorithm, evidence: Evidence, factors: Factors) -> Eps:
        """Return eps for a tensor. The optimizer's record says what eps is compared with."""
        base = self.eps_of(optimizer)
        if base is None:
            return None
        scale = TensorScale(
            evidence.item.shape,
            evidence.base_shape,
            evidence.item.tensor.dtype,
            factors.std,
            factors.gradient,
        )
        return times(optimizer.scaled_eps(base, scale), factors.eps**optimizer.eps_power)

    def decayed(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Return the rows, without weight decay on vectors if the user wants none there."""
        if self.decay_vectors:
            return tuple(rows)
        result: list[Row] = []
        for row in rows:
            if len(row.shape) < 2:
                blocks = tuple(replace(block, weight_decay=0.0) for block in row.blocks)
                row = replace(row, weight_decay=0.0, blocks=blocks)
            result.append(row)
        return tuple(result)

    def settings(self, relative: bool) -> Settings:
        """Return the plain values of the request that are part of a plan."""
        optimizer = self.algorithm
        lr = self.lr.for_optimizer(optimizer.name)
        if lr is None:
            lr = optimizer.lr
        if lr is None:  # every tensor has a rate of its own: `lr_of` has checked that
            plain_rates = self.lr.plain
            if isinstance(plain_rates, dict):
                lr = max(plain_rates.values())
            else:
                lr = 0.0
        weight_decay = self.weight_decay.for_optimizer(optimizer.name)
        per_tensor: dict[str, Mapping[str, float]] = {}
        for setting in self.per_tensor:
            plain = setting.plain
            if isinstance(plain, dict):
                per_tensor[setting.name] = plain
            elif setting.name == INIT_SCALE and plain != 1:
                per_tensor[setting.name] = {DEFAULT: setting.default or 1.0}
        return Settings(
            rule=self.name,
            optimizer=optimizer.name,
            lr=lr,
            weight_decay=optimizer.weight_decay if weight_decay is None else weight_decay,
            per_tensor=per_tensor,
            eps=self.eps_of(optimizer),
            gauge=self.gauge,
            depth=self.depth,
            decay=self.decay,
            horizon=self.horizon.rule,
            axes=self.horizon.sizes,
            critical_batch=self.horizon.critical_batch,
            expert_rule=self.expert_rule,
            rank_rule=self.rank_rule,
            repetition_rule=self.repetition_rule,
            decay_vectors=self.decay_vectors,
            relative=relative,
            user_class=optimizer.user_text,
            init=self.init.plain,
        )


@cache
def _parameterization(rule: str | Parameterization, law: str | UpdateLaw) -> Parameterization:
    if not isinstance(rule, Parameterization):
        return rules.get(rule, law)  # a law is the name of an optimizer that has this update law
    if rule.rates_for is None or rule.rates_for[0] == law:
        return rule
    return rule.with_c(solve(rule, law, rule.rates_for[1]).c)


@cache
def _moves_features(rule: Parameterization) -> bool:
    """Return whether the readout starts as small as muP's.

    Then features can move at order one, whatever the learning rates.
    """
    ours = canonical(rule, "adam")
    mup = canonical(rules.get("mup", "adam"), "adam")
    return all(ours.b[role] == mup.b[role] for role in MATRIX_ROLES)


def _check_decay(optimizer: Algorithm) -> None:
    """Raise an InputError if an optimizer has no weight decay, or decays in an unknown way."""
    if not optimizer.has_setting("weight_decay"):
        raise InputError(
            f"weight_decay: the constructor of {optimizer.label} does not take it; pass"
            " weight_decay=0.0",
            argument="weight_decay",
        )
    if not optimizer.decay_is_known:
        raise InputError(
            f"weight_decay: it is unknown whether {optimizer.label} adds it to the gradient (Adam)"
            " or decouples it (AdamW); pass decoupled_decay=False or True to"
            " orderone.optimizers.register, or weight_decay=0.0 to the plan",
            argument="weight_decay",
        )
