"""How the initial values of a tensor are drawn, if a start sets its size.

    normal       Gaussian, not truncated, with the size of the row as standard deviation
    orthogonal   orthonormal rows, or columns if these are shorter, times a gain
    constant     all entries equal

Values come from torch's generator of the tensor's device, tensor by tensor in the order of the
plan: `torch.manual_seed` before `apply` makes them the same every time. In float64 and float32 they
are those of `torch.nn.init.normal_` and `torch.nn.init.orthogonal_`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.rules.starts import CONSTANT, NORMAL, ORTHOGONAL

if TYPE_CHECKING:
    from orderone.planning.plan_row import Row


@dataclass(frozen=True)
class Draw:
    """Distribution of the initial values of a tensor, and the start that chose it."""

    start: str  # name of a start, "zero", or the number that the user passed
    distribution: str = NORMAL
    # of orthogonal values: axes that no sum runs over, and the number of matrices side by side
    fan_out: tuple[int, ...] = ()
    parts: int = 1
    experts: bool = False  # the first axis counts separate matrices


def draw(row: "Row", tensor: Tensor, modules: "list[nn.Module]") -> None:
    """Draw the initial values of a tensor with the size of its row.

    `modules` hold the tensor: the row of padding in an embedding stays zero.
    """
    if row.constant is not None:
        tensor.fill_(row.constant)
        return
    if row.draw is not None and row.draw.distribution == ORTHOGONAL:
        _draw_orthogonal(row, row.draw, tensor)
    elif hasattr(tensor, "device_mesh"):
        _draw_sharded(row, tensor)
    else:
        tensor.normal_(std=row.init_std)
    if row.draw is None:
        return
    for module in modules:
        padding = getattr(module, "padding_idx", None)
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and padding is not None:
            tensor[padding].zero_()


def _draw_sharded(row: "Row", tensor: Any) -> None:
    """Draw a sharded tensor.

    On a mesh of CPUs, processes with the same seed would all draw the same shard. There each draws
    the whole tensor and takes its part.
    """
    from torch.distributed.tensor import distribute_tensor

    if tensor.device_mesh.device_type != "cpu":
        tensor.normal_(std=row.init_std)
        return
    whole = torch.empty(row.shape, dtype=tensor.dtype).normal_(std=row.init_std)
    tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))


def _draw_orthogonal(row: "Row", how: Draw, tensor: Tensor) -> None:
    if hasattr(tensor, "device_mesh"):
        raise InputError(
            f"init: {row.name} is sharded, and an orthogonal matrix is drawn as a whole; call"
            " plan.apply() before sharding, or use init='fan-in'",
            argument="init",
        )
    for block in _blocks(tensor, how):
        rows, columns = block.shape
        gain = row.init_std * math.sqrt(max(rows, columns))
        if block.dtype == torch.float64:
            exact = block.dtype
        else:
            exact = torch.float32
        values = torch.empty(rows, columns, dtype=exact, device=block.device)
        nn.init.orthogonal_(values, gain)
        block.copy_(values)


def _blocks(tensor: Tensor, how: Draw) -> Iterator[Tensor]:
    """Yield the matrices of a tensor as views, fan-out first."""
    if how.experts:
        wholes = list(tensor.unbind(0))
    else:
        wholes = [tensor]
    shift = int(how.experts)
    outputs = [axis - shift for axis in how.fan_out if axis >= shift]
    for whole in wholes:
        inputs = [axis for axis in range(whole.dim()) if axis not in outputs]
        rows = math.prod(whole.shape[axis] for axis in outputs)
        ordered = whole.permute(*outputs, *inputs)
        size = rows // how.parts
        if len(outputs) == 1 and len(inputs) == 1:
            yield from ordered.split(size)
            continue
        # axes of kernels and heads: a copy is written back, as a view may not exist
        flat = ordered.reshape(rows, -1).clone()
        yield from flat.split(size)
        ordered.copy_(flat.reshape(ordered.shape))


ZERO = Draw("zero", CONSTANT)


@dataclass(frozen=True)
class StartCounts:
    """Numbers of tensors by what `apply` does with their initial values."""

    drawn: int  # at random
    constant: int  # set to 0 or another constant
    kept: int  # those of the model's code


def start_counts(rows: "Sequence[Row]") -> StartCounts:
    """Count the tensors that a start draws, sets to a constant, or leaves as they are."""
    replaced = [row for row in rows if row.draw is not None]
    constant = sum(row.constant is not None for row in replaced)
    return StartCounts(len(replaced) - constant, constant, len(rows) - len(replaced))


def describe(setting: str | float | Mapping[str, str | float] | None, rows: "Sequence[Row]") -> str:
    """Return a line about the start for the text of a plan."""
    if isinstance(setting, Mapping):
        words = ", ".join(f"{key}: {value}" for key, value in setting.items())
    else:
        words = str(setting)
    counts = start_counts(rows)
    parts = [f"start: {words}; `apply` draws {counts.drawn} of {len(rows)} tensors at random"]
    if counts.constant:
        constants: dict[str, None] = {}
        for row in rows:
            if row.draw is not None and row.constant is not None:
                constants[f"{row.constant:.4g}"] = None
        parts.append(f"sets {counts.constant} to {' or '.join(constants)}")
    parts.append(f"takes {counts.kept} from the model's code")
    return ", ".join(parts)
