"""Tensors that stand still: nothing in any run ever moved them, and why."""

import math
from collections.abc import Iterator
from fnmatch import fnmatch

from orderone.measure.study import Study
from orderone.measure.verdict import FAIL, UNCLEAR
from orderone.observe.inventory import Item, inventory, modules_by_name

Finding = tuple[str, str]  # verdict and why; without a verdict it is only noted


def still(study: Study) -> Iterator[tuple[str, str, str]]:
    """Name, verdict and why; those that match a pattern in `frozen` are meant to."""
    seen = study.observations
    for name, item in inventory(study.large).items() if seen.steps else ():
        if seen.largest(seen.key(name), "update") > 0 or any(
            fnmatch(name, pattern) for pattern in study.frozen
        ):
            continue
        verdict, why = _finding(study, item)
        if verdict:
            yield name, verdict, f"frozen: {why}; if it is meant, say frozen=({name!r},)"
        else:
            study.notes.append(f"{name} {why}")


def _finding(study: Study, item: Item) -> Finding:
    seen = study.observations
    key = study.observations.key(item.name)
    if not item.tensor.requires_grad:
        if _is_table(study, item):
            return ("", "is a table, not trained")
        return (FAIL, "requires_grad is False")
    gradient = seen.largest(key, "gradient")
    if math.isnan(gradient):
        modules = modules_by_name(study.large)
        called = [
            place.module for place in item.places if seen.at(seen.key(place.module), "output", 0)
        ]
        alone = any(not list(modules[module].children()) for module in called)
        if alone:
            return (FAIL, "no gradient reaches it")
        return ("", "is not used in training")
    if gradient == 0:
        return UNCLEAR, "its gradient is zero in all of these steps"
    rates = [rates[item.name] for run in seen.runs for rates in run.rates if item.name in rates]
    if not rates:
        return FAIL, "it has a gradient, and no step moves it: is it in the optimizer?"
    if not any(rates):
        return UNCLEAR, "its learning rate is zero in all of these steps"
    return "", "has updates that are too small to change it"


def _is_table(study: Study, item: Item) -> bool:
    """The same numbers for every seed, and not one number: sinusoids, for example, that are not
    meant to learn."""
    sizes = study.observations.at(study.observations.key(item.name), "weight", 0)
    by_size = {size: {m for (other, _), m in sizes.items() if other == size} for size, _ in sizes}
    seeds = {seed for _, seed in sizes}
    same = len(seeds) > 1 and all(len(moments) == 1 for moments in by_size.values())
    return same and bool(item.tensor.min() != item.tensor.max())
