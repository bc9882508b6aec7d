"""JSON and YAML: everything that a plan says, for a trainer of your own."""

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from orderone.optimizers.muon import CONVENTION
from orderone.optimizers.table import ALGORITHMS
from orderone.planning.exports.content import Content
from orderone.planning.exports.format import (
    LOSSES,
    Base,
    Data,
    Format,
    Values,
    first_match,
    trained_tensors,
    values,
)
from orderone.planning.exports.patterns import regex
from orderone.planning.exports.yaml_text import yaml_text

if TYPE_CHECKING:
    from orderone.planning.plan import Plan


class Json(Format):
    optimizers: ClassVar[Mapping[str, str]] = {name: name for name in ALGORITHMS}
    holds: ClassVar[frozenset[str]] = frozenset(LOSSES)
    advice: ClassVar[str] = "Patterns are regular expressions for re.search; they never overlap."

    def data(self, content: Content, base: Base) -> Data:
        groups: list[Data] = []
        for group in content.groups:
            convention = {} if group.convention is None else {CONVENTION: group.convention}
            groups.append(
                {
                    "pattern": regex(group.names, content.names),
                    "optimizer": group.optimizer,
                    "lr": group.lr,
                    "lr_mult": group.lr / base.lr,
                    "weight_decay": group.weight_decay,
                    "wd_mult": _ratio(group.weight_decay, base.weight_decay),
                    "eps": group.eps,
                    **group.averages,
                    **convention,
                }
            )
        return {"lr": base.lr, "weight_decay": base.weight_decay, "groups": groups}

    def text(self, data: Data) -> str:
        return json.dumps(data, indent=2) + "\n"

    def names_in(self, model: nn.Module) -> list[str]:
        return list(trained_tensors(model))

    def build(self, data: Data, model: nn.Module | None) -> object:
        return data

    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        return {name: values(g) for name, g in first_match(data["groups"], names).items()}


class Yaml(Json):
    def text(self, data: Data) -> str:
        return yaml_text(data)


def rest(plan: "Plan") -> Data:
    """Return what a plan says beside groups and initial sizes: factors, and settings of rows."""
    multipliers: list[Data] = []
    for multiplier in plan.multipliers:
        multipliers.append(
            {"module": multiplier.module, "side": multiplier.side, "value": multiplier.value}
        )
    rows: list[Data] = []
    for row in plan.rows:
        for block in row.blocks:
            rows.append(
                {
                    "name": row.name,
                    "axis": block.axis,
                    "ranges": [list(ends) for ends in block.ranges],
                    "lr": block.lr,
                    "weight_decay": block.weight_decay,
                    "eps": block.eps,
                    "init_std": block.init_std,
                }
            )
    return {"multipliers": multipliers, "rows": rows}


def _ratio(value: float, base: float) -> float | None:
    if base:
        return value / base
    return None
