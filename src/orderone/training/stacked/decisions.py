"""Decisions that depend on values inside a forward pass: `if mask.all():`, `int(lengths.max())`.

vmap refuses them, since members may differ. Here the value of every member is read. If all members
have the same value, it is returned. If not, `Divided` ends the pass, and it is run again for each
group of members that agree (`groups.py`).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from orderone.training.stacked.capturing import is_known, is_recorded
from orderone.training.stacked.errors import NotCapturable

Question: TypeAlias = Callable[..., object]  # a function of torch that reads a value
Answer: TypeAlias = object

NO_ANSWER = object()
QUESTIONS: dict[Question, Callable[[Any], Answer]] = {
    Tensor.__bool__: bool,
    torch.is_nonzero: bool,
    Tensor.item: lambda value: value,
    Tensor.__int__: int,
    Tensor.__index__: int,
}


class Divided(BaseException):
    """Members decide differently; a BaseException, so that user code does not catch it."""

    def __init__(self, answers: list[Answer]):
        super().__init__(answers)
        self.answers = answers

    @property
    def groups(self) -> list[list[int]]:
        """Groups of members with the same answer."""
        by_answer: dict[Answer, list[int]] = {}
        for member, answer in enumerate(self.answers):
            by_answer.setdefault(answer, []).append(member)
        return list(by_answer.values())


def answer(question: Question, stacked: Tensor) -> Answer:
    """Return the common answer of all members, from a tensor (K, ...) with one entry for each.

    Return NO_ANSWER for real numbers that differ: there would be K groups.
    """
    if stacked.numel() != len(stacked):
        return NO_ANSWER
    if is_recorded() and not is_known(stacked):
        raise NotCapturable(
            "the forward pass makes a decision that depends on values; a graph would repeat the"
            " first decision"
        )
    answers = [QUESTIONS[question](value) for value in stacked.flatten().tolist()]
    if all(value == answers[0] for value in answers):
        return answers[0]
    if isinstance(answers[0], (float, complex)):
        return NO_ANSWER
    raise Divided(answers)
