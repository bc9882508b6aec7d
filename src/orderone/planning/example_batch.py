"""Example batches for models that the user passed none for.

A Hugging Face model has them in `planning.huggingface`. Any other model gets one only if its
readout shares the table of the embedding: then its input is a batch of indices into this table.
"""

import torch
from torch import Tensor, nn

from orderone.observe.inventory import Item, inventory

BATCH = (2, 8)


def token_batch(*models: nn.Module) -> Tensor | None:
    """Return indices that all models accept; None if a model has no tied table."""
    rows: list[int] = []
    lengths = [BATCH[1]]
    device = torch.device("cpu")
    for model in models:
        items = inventory(model)
        tied = [item for item in items.values() if _is_tied(item)]
        if len(tied) != 1:
            return None
        rows.append(tied[0].shape[0])
        device = tied[0].tensor.device
        for item in items.values():
            is_table = any(place.layout and place.layout.kind == "lookup" for place in item.places)
            if is_table and item is not tied[0]:
                lengths.append(item.shape[0])  # perhaps a table of positions
    generator = torch.Generator().manual_seed(0)
    return torch.randint(min(rows), (BATCH[0], min(lengths)), generator=generator).to(device)


def _is_tied(item: Item) -> bool:
    kinds = {place.layout.kind for place in item.places if place.layout}
    return {"lookup", "matrix"} <= kinds
