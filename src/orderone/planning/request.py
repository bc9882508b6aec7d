"""What the user asked for, read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from math import isfinite
from numbers import Real
from typing import Any

from orderone import rules
from orderone.core.errors import one_of
from orderone.core.exact import HALF, ONE, exact
from orderone.optimizers.table import Algorithm, Eps, class_name
from orderone.planning.plan import Settings
from orderone.theory.exponents import MATRIX_ROLES, Parameterization, canonical, solve


@dataclass(frozen=True)
class Request:
    rule: Any
    algorithm: Algorithm
    lr: Any
    weight_decay: Any
    eps: Any
    depth: str | None
    gauge: str
    decay: str
    no_decay: tuple[str, ...]
    overrides: Mapping[str, str]
    score_power: Any

    def parameterization(self, law: str) -> Parameterization:
        """The rule with rates for this update law: derived, or as they were given."""
        return _parameterization(self.rule, law)

    @property
    def name(self) -> str:
        if isinstance(self.rule, Parameterization):
            return self.rule.name
        return str(self.rule).lower()

    @property
    def power(self) -> float:
        """The power of the head size that attention scores shall be divided by: all of it if
        features move at order one, as in muP, and its root otherwise (S0 section 2)."""
        if self.score_power is not None:
            return float(exact(self.score_power, "score_power"))
        return float(ONE if _moves_features(self.parameterization("adam")) else HALF)

    def lr_of(self, a: Algorithm) -> float:
        given = self.lr
        if isinstance(self.lr, Mapping):
            for name in self.lr:
                one_of(name, sorted(self.algorithm.names), "optimizer in lr")
            given = self.lr.get(a.name)
        return nonnegative(a.lr if given is None else given, "lr")

    def weight_decay_of(self, a: Algorithm, name: str) -> float:
        if any(fnmatch(name, pattern) for pattern in self.no_decay):
            return 0.0
        return nonnegative(
            a.weight_decay if self.weight_decay is None else self.weight_decay, "weight_decay"
        )

    def eps_of(self, a: Algorithm) -> Eps:
        if self.eps is None or a.eps is None or a.name != self.algorithm.name:
            return a.eps
        if not isinstance(a.eps, tuple):
            return nonnegative(self.eps, "eps")
        if not isinstance(self.eps, (tuple, list)) or len(self.eps) != 2:
            raise ValueError(
                f"eps: expected a pair for {a.name}, as in torch: (None, 1e-3); got {self.eps!r}"
            )
        floor, size = self.eps
        return (None if floor is None else nonnegative(floor, "eps"), nonnegative(size, "eps"))

    def settings(self, relative: bool) -> Settings:
        a = self.algorithm
        return Settings(
            rule=self.name,
            optimizer=a.name,
            lr=self.lr_of(a),
            weight_decay=self.weight_decay_of(a, ""),
            eps=self.eps_of(a),
            gauge=self.gauge,
            depth=self.depth,
            decay=self.decay,
            relative=relative,
            user_class=None if a.user_class is None else class_name(a.user_class),
        )


@cache
def _parameterization(rule: Any, law: str) -> Parameterization:
    if not isinstance(rule, Parameterization):
        return rules.get(rule, law)
    if rule.rates_for is None or rule.rates_for[0] == law:
        return rule
    return rule.with_c(solve(rule, law, rule.rates_for[1]).c)


@cache
def _moves_features(p: Parameterization) -> bool:
    """Whatever the rates: a readout that starts as small as muP's lets features move at order
    one."""
    ours = canonical(p, "adam")
    theirs = canonical(rules.get("mup", "adam"), "adam")
    return all(ours.b[role] == theirs.b[role] for role in MATRIX_ROLES)


def nonnegative(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value < 0:
        raise ValueError(f"{name}: expected a number, zero or more; got {value!r}")
    return float(value)
