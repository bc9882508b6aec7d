"""A few batches of data in any form, for measurements that train for a few steps."""

from dataclasses import dataclass

from orderone.loading.forms import OneBatch, read_data, repeat_notes
from orderone.loading.passes import ListOfBatches, OnePass
from orderone.observe.batches import Batch, as_batch, read_batches

SEED = 0  # all sizes and seeds of a study train on the same batches


@dataclass(frozen=True)
class Examples:
    """Batches, and notes on the data."""

    batches: list[Batch]
    notes: tuple[str, ...] = ()


def read_examples(
    data: object, steps: int, batch_size: object = None, collate_fn: object = None
) -> Examples:
    """Return a batch for each step.

    A list must have one for each step. An iterator may end early; then there are fewer.
    """
    source = read_data(data, batch_size, collate_fn, argument="batches")
    if isinstance(source, OneBatch):
        return Examples(read_batches(source.batch, steps))
    if isinstance(source, ListOfBatches):
        return Examples(read_batches(source.items, steps))
    if isinstance(source, OnePass):
        return Examples(read_batches(source.data, steps))
    batches: list[object] = []
    for step in range(steps):
        batches.append(as_batch(source.batches(step, [SEED])[0]))
    return Examples(read_batches(batches, steps), tuple(repeat_notes(source, steps)))
