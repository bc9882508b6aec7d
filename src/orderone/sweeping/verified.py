"""How a stack was proved equal to stand-alone runs, as a sweep shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orderone.training.outcome import Outcome

LAST_STEP = {"agrees": "agrees, too", "unclear": "could not be repeated alone"}


@dataclass(frozen=True)
class Verified:
    """Proof of one stack: two members took two steps in it and alone.

    `loss`, `gradient` and `update` are the largest relative differences. `how` is "" if the stack
    was not proved (verify=False). With `draws`, models draw random numbers, such as dropout: both
    ways drew the same ones in the proof. `last` says whether one member, which took the last step
    alone, too, had the loss and gradients of the stack: "agrees", "unclear" (the model has state
    that no attribute shows) or "" (not checked).
    """

    trials: tuple[str, ...]  # keys of the trials in the stack
    pair: tuple[str, ...]  # keys of the two that took steps both ways
    how: str
    loss: float
    gradient: float
    update: float
    draws: bool
    last: str = ""

    @staticmethod
    def read(keys: Sequence[str], outcome: Outcome) -> "Verified":
        """Read the facts that are stored with the outcome of a trial."""
        stored: Any = outcome.facts.get("verified")
        facts: dict[str, Any] = dict(stored) if isinstance(stored, Mapping) else {}
        return Verified(
            trials=tuple(keys),
            pair=tuple(facts.get("pair", ())),
            how=str(facts.get("how", "")),
            loss=float(facts.get("loss", 0.0)),
            gradient=float(facts.get("gradient", 0.0)),
            update=float(facts.get("update", 0.0)),
            draws=bool(facts.get("draws", False)),
            last=str(facts.get("last", "")),
        )

    def __bool__(self) -> bool:
        return bool(self.how)

    def __str__(self) -> str:
        if not self.how:
            return f"{len(self.trials)} trials in one stack: not verified"
        text = (
            f"{len(self.trials)} trials in one stack: {self.how}; losses differ by"
            f" {self.loss:.1g}, gradients by {self.gradient:.1g}, updates by {self.update:.1g}"
        )
        if self.draws:
            text += "; with the same random draws"
        if self.last:
            text += f"; the last step {LAST_STEP[self.last]}"
        return text
