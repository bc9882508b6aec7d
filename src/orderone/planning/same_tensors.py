"""Check that a model has the tensors of a plan."""

from collections.abc import Mapping, Sequence

from torch import Tensor, distributed, nn

from orderone.core.errors import InputError
from orderone.observe.inventory import tensors_of
from orderone.planning.plan_row import Row

_FLATTENED = (
    "model: FullyShardedDataParallel (FSDP1) has flattened and joined its tensors, and a plan has a"
    " learning rate for each of them; use FSDP2: torch.distributed.fsdp.fully_shard, or"
    " fsdp_version=2 of Accelerate"
)


def planned_tensors(rows: Sequence[Row], model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of the model; raise an InputError if they are not those of the rows."""
    tensors = tensors_of(model)
    try:
        _same_tensors(rows, {name: tuple(x.shape) for name, x in tensors.items()})
    except InputError as error:
        if _is_flattened(model):
            raise InputError(_FLATTENED, "flattened-by-fsdp1", argument="model") from error
        raise
    return tensors


def _is_flattened(model: nn.Module) -> bool:
    """Return whether FSDP1 wraps the model or a part of it."""
    if not distributed.is_available():
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def _same_tensors(rows: Sequence[Row], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an InputError unless the model has the tensors of the plan."""
    planned = {row.name: row for row in rows}
    for name, shape in shapes.items():
        if name not in planned:
            remedy = "make a new plan"
            for row in rows:
                if name.rpartition(".")[0] in row.uses:
                    remedy = f"it was tied to {row.name}; tie it again (model.tie_weights())"
                    break
            message = f"model: the plan has no row for its tensor {name}; {remedy}"
            raise InputError(message, "tensors-changed", argument="model")
        if shape != planned[name].shape:
            message = (
                f"model: {name} has shape {shape}, and the plan is for {planned[name].shape}; make"
                " a new plan"
            )
            raise InputError(message, "tensors-changed", argument="model")
    for name in planned:
        if name not in shapes:
            message = f"model: it has no tensor {name}, which the plan has; make a new plan"
            raise InputError(message, "tensors-changed", argument="model")
