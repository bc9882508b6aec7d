"""Tensors of a traced forward pass that do not depend on the inputs: tables and their parts.

A parameter, a part of it, or rows that are looked up at fixed positions have labels, the entries of
the parameter that they show. Two tokens that show the same row share it; rows are independent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orderone.measure.kernels.traced_values import Value
from orderone.torch_compat import tree_leaves, tree_map

MOVES = {
    *("expand", "view", "reshape", "unsqueeze", "squeeze", "getitem", "narrow", "select", "clone"),
    *("repeat", "expand_as", "contiguous", "to", "permute", "transpose", "t", "get", "flatten"),
    *("float", "double", "broadcast_to", "detach", "chunk", "split", "T", "mT", "data"),
}


@dataclass(frozen=True, eq=False)
class Part:
    """A tensor whose entries are those of a parameter."""

    tensor: Tensor
    parameter: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Added:
    """Numbers added to the tokens of a stream."""

    covariance: np.ndarray  # (tokens, tokens)
    means: np.ndarray  # of each token over channels; 0 for random numbers
    parameter: Tensor | None  # that they are; None if they are not trained


class Constants:
    """Parts of parameters that a forward pass made."""

    def __init__(self, parameters: Mapping[int, str]) -> None:
        self.names = parameters
        self.parts: dict[int, Part] = {}

    def follow(
        self,
        name: str,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        result: Tensor,
    ) -> None:
        """Record a result that shows entries of a parameter."""
        if name == "embedding":
            given = {**dict(zip(("input", "weight"), args, strict=False)), **kwargs}
            ids = given.get("input")
            table = self._part(given.get("weight"))
            trained = table is not None and table.parameter.requires_grad
            if table is not None and isinstance(ids, Tensor) and result.requires_grad == trained:
                self.parts[id(result)] = Part(result, table.parameter, table.labels[ids])
            return
        if name not in MOVES:
            return
        for leaf in tree_leaves((args, kwargs)):
            part = self._part(leaf)
            if part is not None:
                self._move(func, args, kwargs, part, leaf, result)
                return

    def _move(
        self,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        part: Part,
        leaf: object,
        result: Tensor,
    ) -> None:
        def swap(each: object) -> object:
            return part.labels if each is leaf else each

        arguments = tree_map(swap, (args, dict(kwargs)))
        labels = func(*arguments[0], **arguments[1])
        if result.requires_grad != part.parameter.requires_grad:
            return  # detached: numbers that are not trained
        if isinstance(labels, Tensor) and labels.shape == result.shape:
            self.parts[id(result)] = Part(result, part.parameter, labels.long())

    def _part(self, tensor: object) -> Part | None:
        if not isinstance(tensor, Tensor):
            return None
        if id(tensor) in self.names:
            labels = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape)
            return Part(tensor, tensor, labels)
        return self.parts.get(id(tensor))

    def knows(self, tensor: object) -> bool:
        """Return whether a tensor shows entries of a parameter."""
        return self._part(tensor) is not None

    def transposed(self, tensor: Tensor) -> Tensor | None:
        """Return the matrix whose transpose a tensor is."""
        part = self._part(tensor)
        if part is None or part.parameter.dim() != 2 or tensor.shape != part.parameter.T.shape:
            return None
        own = torch.arange(part.parameter.numel(), device=tensor.device)
        if bool((part.labels != own.reshape(part.parameter.shape).T).any()):
            return None
        return part.parameter

    def added(
        self, tensor: Tensor, x: Value, variance: Callable[[object], float | None]
    ) -> Added | None:
        """Return the numbers that are added to a stream; None if they are no such numbers."""
        assert x.features is not None
        part = self._part(tensor)
        shape = x.tensor.shape
        if part is None:
            if tensor.requires_grad or not tensor.is_floating_point():
                return None
            rows = tensor.detach().double().broadcast_to(shape).movedim(x.features, -1)
            flat = rows.reshape(-1, rows.shape[-1]).cpu().numpy()
            return Added(flat @ flat.T / flat.shape[1], flat.mean(1), None)
        labels = part.labels.broadcast_to(shape).movedim(x.features, -1)
        P = self._table(part, labels.reshape(-1, labels.shape[-1]), variance)
        return None if P is None else Added(P, np.zeros(len(P)), part.parameter)

    def rows(
        self, tensor: object, features: int, variance: Callable[[object], float | None]
    ) -> np.ndarray | None:
        """Return P of tokens that are rows of a parameter."""
        part = self._part(tensor)
        if part is None:
            return None
        labels = part.labels.movedim(features, -1)
        return self._table(part, labels.reshape(-1, labels.shape[-1]), variance)

    def _table(
        self, part: Part, labels: Tensor, variance: Callable[[object], float | None]
    ) -> np.ndarray | None:
        """Return the covariance of rows, from the entries that they show, (tokens, channels).

        None if two channels show the same entry, as for one number per token.
        """
        ordered = labels.sort(1).values
        if bool((ordered.diff(dim=1) == 0).any()):
            return None
        variance(part.parameter)  # refuses a parameter that is used twice
        square = part.parameter.detach().double().flatten()[labels].square().mean(1)
        shared = (labels[:, None] == labels[None]).double().mean(-1)
        size = square.sqrt()
        return (shared * size[:, None] * size[None]).cpu().numpy()
