"""Check that trials of one architecture have the same tensors, whatever their seeds.

Otherwise their losses could not be compared.
"""

from collections.abc import Mapping

from orderone.core.errors import InputError
from orderone.sweeping.trial import Trial

Shapes = Mapping[str, tuple[int, ...]]


class SameTensors:
    """Tensor shapes of the first trial of every architecture."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, Shapes]] = {}

    def check(self, trial: Trial, shapes: Shapes) -> None:
        """Raise an InputError that names the first tensor that differs, and the two trials."""
        first, expected = self._first.setdefault(trial.architecture, (str(trial), shapes))
        for name in [*expected, *shapes]:
            if expected.get(name) == shapes.get(name):
                continue
            before = _shape_text(expected.get(name))
            now = _shape_text(shapes.get(name))
            raise InputError(
                f"build: expected the same tensors from every call with the same sizes; {name} is"
                f" {before} for ({first}) and {now} for ({trial}); build must depend only on its"
                " arguments",
                "build-not-repeatable",
                argument="build",
            )


def _shape_text(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "missing"
    return f"of shape {shape}"
