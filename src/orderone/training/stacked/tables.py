"""Rows of stacked embedding tables, with a gradient that has the same bits every time.

On a GPU, torch adds the gradients of equal ids in an order that changes from run to run, if there
are more than a few thousand ids and few rows. A stack of small tables is such a case. Here the
order is fixed:

    small tables    (K, V, N) ones where id n is row v, times (K, N, C): one bmm
    large tables    sorted by id, then added in that order (torch's index_put)

Callers are outside vmap (`vmap_overrides.py`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SMALL = 64  # rows of a table; with more, sorting costs less than a product
LARGEST = 2**28  # entries of the ones at a time


def rows_of_tables(tables: Tensor, ids: Tensor) -> Tensor:
    """Return the rows (K, ..., C) of (K, V, C) for ids (K, ...)."""
    members, number, _ = tables.shape
    first = torch.arange(members, device=ids.device) * number
    places = ids + first.view(-1, *[1] * (ids.dim() - 1))
    # an id outside the table must not read a row of another member: map it past the last row,
    # where torch raises
    places = torch.where((ids >= 0) & (ids < number), places, members * number)
    if tables.device.type == "cpu":
        return functional.embedding(places, tables.flatten(0, 1))
    return Rows.apply(tables, places)


class Rows(torch.autograd.Function):
    """Rows of tables (K, V, C) at places (K, ...) in the table of all members."""

    @staticmethod
    def forward(ctx: Any, tables: Tensor, places: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(places)
        ctx.number = tables.shape[1]
        return functional.embedding(places, tables.flatten(0, 1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        members = len(places)
        grad = grad.reshape(members, -1, grad.shape[-1])
        return sums_by_place(grad, places.reshape(members, -1), ctx.number), None


# torch.compile would replace index_put by sums in any order; it leaves an operation of our own
@torch.library.custom_op("orderone::sums_by_place", mutates_args=())
def sums_by_place(values: Tensor, places: Tensor, number: int) -> Tensor:
    """Return (K, V, C), the sums of those of (K, N, C) that belong to the same place."""
    members, _, columns = values.shape
    if number <= SMALL:
        return _by_products(values, places, number)
    sums = values.new_zeros(members * number, columns)
    sums.index_put_((places.flatten(),), values.flatten(0, 1), accumulate=True)
    return sums.view(members, number, columns)


@sums_by_place.register_fake
def _shape_of_sums(values: Tensor, places: Tensor, number: int) -> Tensor:
    return values.new_empty(len(values), number, values.shape[-1])


def _gradient_of_sums(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return functional.embedding(ctx.places, grad.flatten(0, 1)), None, None


def _keep_places(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.places = inputs[1]


sums_by_place.register_autograd(_gradient_of_sums, setup_context=_keep_places)


def _by_products(values: Tensor, places: Tensor, number: int) -> Tensor:
    members, ids = places.shape
    rows = torch.arange(members * number, device=places.device).view(members, number, 1)
    at_once = max(1, LARGEST // (number * ids))
    parts = zip(values.split(at_once), places.split(at_once), rows.split(at_once), strict=True)
    products: list[Tensor] = []
    for some_values, some_places, some_rows in parts:
        belongs = some_places.unsqueeze(1) == some_rows
        products.append(torch.bmm(belongs.to(values.dtype), some_values))
    return torch.cat(products)
