"""Rows of stacked embedding tables, with a gradient that has the same bits every time.

On a GPU, torch adds the gradients of equal ids in an order that changes from run to run, if there
are more than a few thousand ids. A stack of tables has that many. Here the order is fixed:

    small tables    (K, V, N) ones where id n is row v, times (K, N, C): one bmm
    large tables    sorted by id, then added in that order (torch's index_put)

Callers are outside vmap (`vmap_overrides.py`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALL = 512  # rows of a table; a product with so many rows costs less than sorting
LARGEST = 2**28  # entries of the ones at a time


def rows_of_tables(tables: Tensor, ids: Tensor) -> Tensor:
    """Return the rows (K, ..., C) of (K, V, C) for ids (K, ...)."""
    if tables.device.type == "cpu":
        return functional.embedding(_places(tables, ids), tables.flatten(0, 1))
    return _Rows.apply(tables, ids)


def _places(tables: Tensor, ids: Tensor) -> Tensor:
    """Return the places of the ids in the table of all members."""
    members, number, _ = tables.shape
    first = torch.arange(members, device=ids.device) * number
    places = ids + first.view(-1, *[1] * (ids.dim() - 1))
    # an id outside the table must not read a row of another member: map it past the last row,
    # where torch raises
    return torch.where((ids >= 0) & (ids < number), places, members * number)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tables: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        places = _places(tables, ids)
        ctx.save_for_backward(places)
        ctx.table = tables.shape
        return functional.embedding(places, tables.flatten(0, 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        members, number, columns = ctx.table
        grad = grad.reshape(members, -1, columns)
        places = places.reshape(members, -1)
        if number <= SMALL:
            return _by_products(grad, places, number), None
        flat = grad.new_zeros(members * number, columns)
        flat = flat.index_put((places.flatten(),), grad.flatten(0, 1), accumulate=True)
        return flat.view(members, number, columns), None


def _by_products(grad: Tensor, places: Tensor, number: int) -> Tensor:
    members, ids = places.shape
    rows = torch.arange(members * number, device=places.device).view(members, number, 1)
    at_once = max(1, LARGEST // (number * ids))
    products: list[Tensor] = []
    for g, p, r in zip(
        grad.split(at_once), places.split(at_once), rows.split(at_once), strict=True
    ):
        products.append(torch.bmm((p.unsqueeze(1) == r).to(g.dtype), g))
    return torch.cat(products)
