"""torchtitan 0.3: `ParamGroupConfig` entries of the optimizer's `param_groups`.

The first pattern that `re.search` finds in the name wins. An entry is complete by itself.
Schedules multiply all learning rates by one factor, so ratios stay. Names contain the parts that
activation checkpointing adds after the number of a layer, and patterns match them with and without.
"""

from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import nn

from orderone.core.optional import need_package
from orderone.planning.exports.content import Content
from orderone.planning.exports.format import (
    Base,
    Data,
    Format,
    Values,
    first_match,
    group_options,
    values,
)
from orderone.planning.exports.patterns import regex


class Torchtitan(Format):
    optimizers: ClassVar[Mapping[str, str]] = {"adam": "Adam", "adamw": "AdamW"}
    holds: ClassVar[frozenset[str]] = frozenset({"eps", "betas", "options"})
    advice: ClassVar[str] = (
        "Put the entries into OptimizersContainer.Config(param_groups=...) of your configuration."
    )

    def data(self, content: Content, base: Base) -> Data:
        entries: list[Data] = []
        for group in content.groups:
            name = self.optimizers.get(group.optimizer, group.optimizer)
            entries.append(
                {
                    "pattern": regex(group.names, content.names, wrapped=True),
                    "optimizer_name": name,
                    "optimizer_kwargs": group_options(group, base),
                }
            )
        return {"param_groups": entries}

    def text(self, data: Data) -> str:
        lines = ["param_groups=["]
        for entry in data["param_groups"]:
            lines += ["    ParamGroupConfig(", f"        pattern={entry['pattern']!r},"]
            lines.append(f"        optimizer_name={entry['optimizer_name']!r},")
            lines += [f"        optimizer_kwargs={entry['optimizer_kwargs']!r},", "    ),"]
        return "\n".join([*lines, "]\n"])

    def build(self, data: Data, model: nn.Module | None) -> object:
        module = need_package("torchtitan.components.optimizer", "torchtitan")
        return [module.ParamGroupConfig(**entry) for entry in data["param_groups"]]

    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        entries = first_match(data["param_groups"], names)
        return {name: values(entry["optimizer_kwargs"]) for name, entry in entries.items()}
