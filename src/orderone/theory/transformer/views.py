"""Views: groups of queries with the same keys and the same scale, which share their attention.

The scores of query t, over the keys t' of its sequence to which it may attend, are Gaussian with
covariance

    C_Q C_K F_tt F_t't''                                                                S2 (A3)

so a single query matters only through its scale F_tt and its mask. After a layer norm F_tt is
nearly the same for all tokens, and bidirectional attention has one view for each sequence; causal
attention has one for each token.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from dataclasses import dataclass

import numpy as np

from orderone.core.errors import InputError
from orderone.theory.transformer.inputs import MaskInput
from orderone.theory.transformer.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Views:
    """Views of all queries, ordered by sequence."""

    sequence: np.ndarray  # (views,) sequence of the keys, in ascending order
    visible: np.ndarray  # (views, keys) bool
    scale: np.ndarray  # (views,) sqrt(F_tt)
    of_query: np.ndarray  # (queries,) index of each query's view

    def only(self, active: np.ndarray) -> "Views":
        """Return some of the views; queries of the others have the index -1."""
        renumbered = np.where(active, np.cumsum(active) - 1, -1)
        return Views(
            self.sequence[active],
            self.visible[active],
            self.scale[active],
            renumbered[self.of_query],
        )

    def within(self, sequence: int) -> slice:
        """Return the views of one sequence."""
        return slice(*np.searchsorted(self.sequence, [sequence, sequence + 1]))


def views(variance: np.ndarray, tokens: Tokens, visible: np.ndarray, tolerance: float) -> Views:
    """Group queries into views.

    `variance` is F_tt of all queries, `visible` is (sequences, queries, keys); scales that differ
    by less than `tolerance` count as one.
    """
    steps = np.round(np.sqrt(variance) / tolerance).astype(np.int64)
    sequence = np.repeat(np.arange(tokens.sequences), tokens.length)
    keys = visible.reshape(tokens.points, -1)
    rows = np.column_stack([sequence, np.packbits(keys, axis=1), steps])
    _, first, of_query = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    of_query = of_query.ravel()
    scale = np.bincount(of_query, np.sqrt(variance)) / np.bincount(of_query)
    return Views(sequence[first], keys[first], scale, of_query)


def separate(variance: np.ndarray, tokens: Tokens, visible: np.ndarray) -> Views:
    """Make every query a separate view."""
    sequence = np.repeat(np.arange(tokens.sequences), tokens.length)
    return Views(
        sequence, visible.reshape(tokens.points, -1), np.sqrt(variance), np.arange(tokens.points)
    )


def read_mask(mask: MaskInput, tokens: Tokens, keys: Tokens, causal: bool) -> np.ndarray:
    """Return (sequences, queries, keys): the keys to which a query may attend.

    `mask` is for keys, (keys,) or (sequences, keys), as for padding; or for pairs, (queries, keys)
    or (sequences, queries, keys). With one sequence, the number of axes decides.
    """
    full = (tokens.sequences, tokens.length, keys.length)
    if mask is None:
        visible = np.ones(full, bool)
    else:
        visible = np.broadcast_to(_spread(_array(mask), full), full)
    if causal:
        visible = visible & np.tri(tokens.length, keys.length, dtype=bool)
    empty = np.argwhere(~visible.any(axis=2))
    if len(empty):
        sequence, query = empty[0]
        raise InputError(
            f"mask: expected at least one key for every query, got none for query {query} of"
            f" sequence {sequence}; let padding tokens attend to themselves, or remove them",
            argument="mask",
        )
    return visible


def _array(mask: MaskInput) -> np.ndarray:
    try:
        return np.asarray(mask)
    except ValueError as error:
        raise InputError(
            f"mask: expected an array of booleans, true for keys to attend to; got {mask!r}, whose"
            " rows have different lengths",
            argument="mask",
        ) from error


def _spread(mask: np.ndarray, full: tuple[int, int, int]) -> np.ndarray:
    sequences, queries, keys = full
    shapes = {
        (sequences, queries, keys): (...,),
        (sequences, keys): (slice(None), None, slice(None)),
    }
    if sequences == 1:
        shapes |= {(keys,): (None, None, slice(None)), (queries, keys): (None,)}
    if mask.dtype != bool or mask.shape not in shapes:
        raise InputError(
            f"mask: expected booleans, true for keys to attend to, of shape {(sequences, keys)} or"
            f" {full}; got {mask.dtype} of shape {mask.shape}; for padding, pass mask = ids != pad",
            argument="mask",
        )
    return mask[shapes[mask.shape]]
