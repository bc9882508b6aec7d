"""Decisions by value inside a forward pass: `if mask.all():`, `int(lengths.max())`.

vmap has no answer, since members may answer differently. Here they are asked: what all say is the
answer. Where they do not agree, the pass is left with `Divided`, and run again for each group of
members that does (`groups.py`).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

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
    """No Exception: code that catches those is not meant to see it."""

    def __init__(self, answers: list[Answer]):
        super().__init__(answers)
        self.answers = answers

    @property
    def groups(self) -> list[list[int]]:
        """Members that gave the same answer."""
        by_answer: dict[Answer, list[int]] = {}
        for member, answer in enumerate(self.answers):
            by_answer.setdefault(answer, []).append(member)
        return list(by_answer.values())


def answer(question: Question, stacked: Tensor) -> Answer:
    """Return the answer that all members give, from (K, ...) with one entry for each.

    Real numbers that differ have no answer: there would be K groups.
    """
    if stacked.numel() != len(stacked):
        return NO_ANSWER
    if stacked.is_cuda and torch.cuda.is_current_stream_capturing():
        raise NotCapturable(
            "the forward pass decides by values, which a graph would not look at again"
        )
    answers = [QUESTIONS[question](value) for value in stacked.flatten().tolist()]
    if all(value == answers[0] for value in answers):
        return answers[0]
    if isinstance(answers[0], (float, complex)):
        return NO_ANSWER
    raise Divided(answers)
