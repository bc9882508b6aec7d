"""Correlations due to tying the head to the embedding, in a solvable model: S2 (1.85), (1.187).

    z_i = n^-1/2 sum_jk W_ji (V_jk + delta_jk) W_kw,      W ~ N(0, C_WE),   V ~ N(0, C_W / n)

    E[z_i z_i']                       = diagonal [i = i'] [w = w']
                                      + contact [i = w] [i' = w'] + swap [i = w'] [i' = w]
    E[sum dz_i/dW|head dz_i'/dW|stem] = head_stem [i = w'] [i' = w]

w is the word of the input.

`diagonal` is the term of an untied head, and the only one in `heads`. `contact` is of order n, but
only for the output that is the token itself (erratum S2.11). Erratum S2.10 has the resolved forms.

In a Transformer, the leading terms come through the skip path (S2 footnotes 19 and 32): after the
last norm, the vector of the word is W_kw / r_t with r_t^2 = G_tt + eps (times the same of a norm
after the stem), so that

    E[z_i z_i']                       contact  n C_WE^2 / (r_t r_t')          [i = w] [i' = w']
    E[lambda_WE sum dz_i/dW dz_i'/dW] cross    2 Lambda_WE C_WE / (r_t r_t')  [i = w'] [i' = w]

are added to G and Theta of the outputs. This concerns one of n_vocab outputs: in the mean over
outputs, `contact` is of order n / n_vocab and `cross` of order 1 / n_vocab, and both vanish for
words that are not in the input.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from orderone.core.exact import count
from orderone.core.inputs import Array, Count, Number
from orderone.core.reals import real
from orderone.theory.transformer.stream import Stream


class TiedTerms(NamedTuple):
    """Coefficients of the correlations of the linear model above."""

    diagonal: float
    contact: float
    swap: float
    head_stem: float


def tied_terms(n: Count, C_WE: Number = 1.0, C_W: Number = 1.0) -> TiedTerms:
    """Return the terms of the linear model of S2 (1.85), exact at any width n."""
    n = count(n, "n")
    C_WE = real(C_WE, "C_WE", least=0)
    C_W = real(C_W, "C_W", least=0)
    return TiedTerms(
        diagonal=C_WE**2 * (C_W + 1),
        contact=C_WE**2 * (n + C_W / n),
        swap=C_WE**2 * (1 + C_W / n),
        head_stem=C_WE * (1 + C_W / n),
    )


class TiedContact(NamedTuple):
    """Terms of a tied head for the outputs that are the input words.

    They are (points, points), or in the shape of G0.
    """

    kernel: Array  # term of G divided by n, for i = w and i' = w'
    ntk: Array  # term of Theta, for i = w' and i' = w


def contact(
    streams: Sequence[Stream], stem_norm: bool, C_WE: float, rate: float, eps: float
) -> TiedContact:
    """Return both terms; `streams` are those after the stem and before the last norm."""
    root = np.sqrt(streams[-1].G.diagonal() + eps)
    if stem_norm:
        root = root * np.sqrt(streams[0].G.diagonal() + eps)
    each = 1 / np.outer(root, root)
    in_user_shape = streams[-1].tokens.in_user_shape
    return TiedContact(in_user_shape(C_WE**2 * each), in_user_shape(2 * rate * C_WE * each))
