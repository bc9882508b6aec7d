"""Whether a loss is the same function of the model's output at every size.

Then it has no factor that depends on the size. It is not if the model computes it, or if the output
contains numbers beside tensors, which may tell the loss the size.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import Batch, Loss, call_inputs, on_device, repeatable
from orderone.observe.derivatives import without_gradients
from orderone.observe.precision import Precision
from orderone.observe.trace import call_with
from orderone.torch_compat import tree_leaves


def is_same_loss(
    models: Sequence[nn.Module], batch: Batch, loss: Loss | None, precision: Precision
) -> bool:
    """Return whether all models pass tensors of the same shapes, and nothing else, to the loss."""
    is_pair = isinstance(batch, tuple) and len(batch) == 2
    if loss is None and not is_pair:
        return False
    shapes = [_output_shapes(model, batch, precision) for model in models]
    return None not in shapes and all(others == shapes[0] for others in shapes)


def _output_shapes(
    model: nn.Module, batch: Batch, precision: Precision
) -> list[tuple[int, ...]] | None:
    """Return the shapes of all tensors in the output; None if it contains anything else."""
    moved = on_device(batch, model)
    args, kwargs = call_with(call_inputs(moved))
    with (
        repeatable(model),
        without_gradients(model),
        precision.passes(model),
        naming_batch("batches", moved, model),
    ):
        output = model(*args, **kwargs)
    shapes: list[tuple[int, ...]] = []
    for leaf in tree_leaves(output):
        if not isinstance(leaf, Tensor):
            return None
        shapes.append(tuple(leaf.shape))
    return shapes
