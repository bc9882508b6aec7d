"""Correlations due to a tied head, for any blocks between stem and head: S2 (1.86).

The head reads the normalized stream s with the word embeddings that made the stem,

    z_ti = n^-1/2 sum_j W_ji s_tj(z1),     z1_tj = W_jw(t) + positions,     W ~ N(0, C_WE)

where w(t) is the word of token t. Integration by parts, twice, is exact at any width n:

    E[z_ti z_ui'] = [i = i'] diagonal_tu
                    + sum_ab [i = w(a)] [i' = w(b)] (contact + swap + curved)_tuab

    diagonal = C_WE / n    E sum_j  s_tj s_uj
    contact  = C_WE^2 / n  E sum_jk (d s_tj / d z1_aj) (d s_uk / d z1_bk)
    swap     = C_WE^2 / n  E sum_jk (d s_tj / d z1_bk) (d s_uk / d z1_aj)
    curved   = C_WE^2 / n  E sum_jk (d^2 s_tj / d z1_aj d z1_bk) s_uk + (the same with s_tj, s_uk
                                    exchanged)

`diagonal` is the kernel of an untied head, (1.83). In the linear model of (1.85), `contact` and
`swap` are those of `tied_terms`, and `curved` is 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import Array, Function, Number
from orderone.core.real_arrays import reals
from orderone.core.reals import real

STEP = 1e-3  # of differences, relative to the RMS of z1: their error is its square
MOST_NUMBERS = 2**22  # in one call of s


class TiedExpansion(NamedTuple):
    """Averages over samples; the first pair of indices has the tokens of the outputs."""

    diagonal: np.ndarray  # (tokens, tokens)
    contact: np.ndarray  # (tokens, tokens, tokens, tokens)
    swap: np.ndarray
    curved: np.ndarray

    def correlations(self, words: Sequence[int], i: int, j: int) -> np.ndarray:
        """Return E[z_ti z_uj] for all tokens t, u; i and j are words of the vocabulary."""
        ids = np.asarray(words)
        tokens = len(self.diagonal)
        if ids.shape != (tokens,):
            raise InputError(
                f"words: expected one word for each of {tokens} tokens, got shape {ids.shape}",
                argument="words",
            )
        terms = self.contact + self.swap + self.curved
        total = np.einsum("tuab,a,b->tu", terms, ids == i, ids == j)
        return total + self.diagonal * (i == j)


def tied_expansion(s: Function, z1: Array, C_WE: Number = 1.0) -> TiedExpansion:
    """Return the terms of S2 (1.86), averaged over samples of the stem.

    Args:
        s: function of arrays (..., tokens, n) with the same shape: the blocks and the last norm,
            with their weights. Derivatives are differences, so s must be smooth.
        z1: samples of the stem, (samples, tokens, n), or one of them.
        C_WE: variance of the word embeddings.
    """
    if not callable(s):
        message = f"s: expected a function of arrays, got {s!r:.60}"
        raise InputError(message, "wrong-type", argument="s")
    samples = np.atleast_3d(reals(z1, "z1"))
    if np.ndim(z1) == 2:
        samples = samples[..., 0][None]
    if samples.ndim != 3 or np.ndim(z1) not in (2, 3):
        raise InputError(
            f"z1: expected samples (samples, tokens, n), got shape {np.shape(z1)}", argument="z1"
        )
    if not np.isfinite(samples).all():
        raise InputError("z1: expected finite numbers", argument="z1")
    variance = real(C_WE, "C_WE", least=0)
    each = [_of_sample(s, sample) for sample in samples]
    n = samples.shape[-1]
    factors = (variance, variance**2, variance**2, variance**2)
    terms = [
        factor / n * np.mean([sample_terms[k] for sample_terms in each], axis=0)
        for k, factor in enumerate(factors)
    ]
    return TiedExpansion(*terms)


def _of_sample(
    s: Function, z1: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the four sums for one sample of the stem, without their factors."""
    tokens, n = z1.shape
    step = STEP * float(np.sqrt(np.mean(z1**2)) or 1.0)
    basis = np.eye(tokens * n).reshape(tokens * n, tokens, n)
    value = _values(s, z1[None])[0]
    moved = _along(s, z1, basis, step).reshape(tokens, n, tokens, n)  # (a, k, t, j)
    diagonal = value @ value.T
    divergence = np.einsum("ajtj->ta", moved)
    contact = np.einsum("ta,ub->tuab", divergence, divergence)
    swap = np.einsum("bktj,ajuk->tuab", moved, moved)
    curved = np.empty((tokens,) * 4)
    for b in range(tokens):
        for u in range(tokens):
            towards = np.zeros_like(z1)
            towards[b] = value[u]
            size = float(np.sqrt(np.mean(value[u] ** 2))) or 1.0
            ahead = _along(s, z1 + step / size * towards, basis, step)
            behind = _along(s, z1 - step / size * towards, basis, step)
            change = (ahead - behind).reshape(moved.shape) * size / (2 * step)
            curved[:, u, :, b] = np.einsum("ajtj->ta", change)
    return diagonal, contact, swap, curved + curved.transpose(1, 0, 3, 2)


def _along(s: Function, z1: np.ndarray, directions: np.ndarray, step: float) -> np.ndarray:
    """Return the derivatives of s at z1 along each of the directions."""
    at_once = max(1, MOST_NUMBERS // (2 * z1.size))
    parts = []
    for start in range(0, len(directions), at_once):
        part = step * directions[start : start + at_once]
        parts.append((_values(s, z1 + part) - _values(s, z1 - part)) / (2 * step))
    return np.concatenate(parts)


def _values(s: Function, z1: np.ndarray) -> np.ndarray:
    values = reals(s(z1), "s")
    if values.shape != z1.shape:
        raise InputError(
            f"s: expected the shape of its argument {z1.shape}, got {values.shape}", argument="s"
        )
    return values
