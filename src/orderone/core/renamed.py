"""Modules that were renamed: the old name still works and warns.

`install` adds a finder to Python's import system. For a name in `MODULES` it returns the module of
the new name: there is one module object, not a copy.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {  # old name -> new name
    "orderone.gallery.bigram": "orderone.gallery.s0.bigram",
    "orderone.gallery.judging": "orderone.gallery.judge",
    "orderone.gallery.kept": "orderone.gallery.store",
    "orderone.gallery.layouts": "orderone.gallery.figures",
    "orderone.measure.batches": "orderone.observe.batches",
    "orderone.measure.watch": "orderone.observe.hooks",
    "orderone.planning.inventory": "orderone.observe.inventory",
    "orderone.planning.layouts": "orderone.observe.layouts",
    "orderone.planning.lion": "orderone.optimizers.lion",
    "orderone.planning.order_one": "orderone.planning.constant_overrides",
    "orderone.planning.seeding": "orderone.seeding",
    "orderone.sweeping.fingerprint": "orderone.training.fingerprint",
    "orderone.sweeping.interrupts": "orderone.training.interrupts",
    "orderone.sweeping.outcome": "orderone.training.outcome",
    "orderone.sweeping.schedule": "orderone.training.schedule",
    "orderone.sweeping.sinks": "orderone.training.sinks",
    "orderone.sweeping.source": "orderone.training.source",
    "orderone.sweeping.stacked.errors": "orderone.training.stacked.errors",
    "orderone.sweeping.stacked.mixed_precision": "orderone.training.stacked.mixed_precision",
    "orderone.sweeping.stacked.optimizer": "orderone.training.stacked.optimizer",
    "orderone.sweeping.stacked.program": "orderone.training.stacked.program",
    "orderone.sweeping.stacked.stack": "orderone.training.stacked.stack",
    "orderone.theory.kernels.given": "orderone.theory.kernels.validation",
}


def install() -> None:
    """Make the old names importable."""
    if not any(isinstance(finder, _RenamedFinder) for finder in sys.meta_path):
        sys.meta_path.append(_RenamedFinder())


class _RenamedFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name; None for every other module."""
        new = MODULES.get(fullname)
        if new is None:
            return None
        message = f"{fullname} was renamed to {new}; the old name will be removed in version 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _RenamedLoader(new))


class _RenamedLoader(Loader):
    """Load the module of the new name and store it under the old name as well."""

    def __init__(self, new: str) -> None:
        self.new = new

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self.new)
