"""Trials of one architecture have the same tensors, whatever their seeds: else their losses are not
to be compared."""

from collections.abc import Mapping

from orderone.sweeping.trial import Trial

Shapes = Mapping[str, tuple[int, ...]]


class SameTensors:
    """What the first trial of every architecture has. It is small, and travels with a job to other
    processes."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, Shapes]] = {}

    def check(self, trial: Trial, shapes: Shapes) -> None:
        """A ValueError names the first tensor that differs, and the two trials."""
        first, expected = self._first.setdefault(trial.architecture, (str(trial), shapes))
        for name in [*expected, *shapes]:
            if expected.get(name) != shapes.get(name):
                raise ValueError(
                    f"build: expected the same tensors from every call with the same sizes; {name}"
                    f" is {_told(expected.get(name))} for ({first}) and {_told(shapes.get(name))}"
                    f" for ({trial}); let build depend on its arguments alone"
                )


def _told(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "missing"
    return f"of shape {shape}"
