"""Products of mixture-of-experts layers: the experts of all members are groups of one product.

    grouped_mm    (S, in) (E, in, out), sorted by expert  ->  (K S, in) (K E, in, out)
    histc         tokens per expert: K histograms as one

torch's kernel of grouped_mm is for bfloat16. In other precisions torch reads the sizes of the
groups on the CPU, so that no CUDA graph can hold the step. Layers with few experts then multiply
all rows by each expert instead, and take what belongs to it.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from orderone.training.stacked.one_by_one import one_by_one

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths

FEW = 16  # experts; all rows are multiplied by each of so many


def grouped_mm(
    mode: "FastPaths",
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor | None:
    """Return the products of all members; None leaves other forms of grouped_mm to vmap."""
    if offs is None or bias is not None or out_dtype is not None:
        return None
    if not mode.known(mat_a, mat_b, offs) or mat_a.dim() != 2 or mat_b.dim() != 3:
        return None
    rows = mode.stacked(mat_a)
    experts = mode.stacked(mat_b)
    ends = mode.stacked(offs)
    if rows.is_cuda and rows.dtype != torch.bfloat16 and experts.shape[1] <= FEW:
        with torch.autocast(rows.device.type, enabled=False):  # grouped_mm ignores it too
            return each_expert(rows, experts, ends)
    first_rows = torch.arange(mode.members, device=ends.device, dtype=ends.dtype) * rows.shape[1]
    out = functional.grouped_mm(
        rows.flatten(0, 1),
        experts.flatten(0, 1),
        offs=(ends + first_rows.unsqueeze(1)).flatten(),
    )
    return out.unflatten(0, (mode.members, -1))


def each_expert(rows: Tensor, experts: Tensor, ends: Tensor) -> Tensor:
    """Multiply (K, S, in) by every expert of (K, E, in, out), and take the rows of that expert."""
    places = torch.arange(rows.shape[1], device=rows.device)
    # number of experts whose rows end before this row, (K, S)
    expert_of_row = (places.view(1, 1, -1) >= ends.unsqueeze(-1)).sum(1)
    out = rows.new_zeros(*rows.shape[:2], experts.shape[-1])
    for number, weights in enumerate(experts.unbind(1)):
        chosen = (expert_of_row == number).unsqueeze(-1)
        out = torch.where(chosen, torch.bmm(rows, weights), out)
    return out


def histc(
    mode: "FastPaths", x: Tensor, bins: int = 100, min: float | int = 0, max: float | int = 0
) -> object:
    """Return the histograms of all members, in one call if each whole number has its own bin."""
    one_each = bins == max - min + 1 and not x.is_floating_point()
    if not one_each or not mode.mapped(x) or not x.is_cuda:
        return one_by_one(torch.histc, mode, x, bins, min, max)
    values = mode.stacked(x).flatten(1) - int(min)
    first_bins = torch.arange(mode.members, device=values.device, dtype=values.dtype) * bins
    inside = (values >= 0) & (values < bins)
    places = torch.where(inside, values + first_bins.unsqueeze(1), -1)  # -1 is not counted
    total = mode.members * bins
    return torch.histc(places.flatten(), total, 0, total - 1).view(mode.members, bins)
