"""Correlations that tying the head to the embedding makes, in a model where all of it can be
written down. S2 (1.85), (1.187).

    z_i = n^-1/2 sum_jk W_ji (V_jk + delta_jk) W_kw,      W ~ N(0, C_WE),   V ~ N(0, C_W / n)

    E[z_i z_i']                       = diagonal [i = i'] [w = w']
                                      + contact [i = w] [i' = w'] + swap [i = w'] [i' = w]
    E[sum dz_i/dW|head dz_i'/dW|stem] = head_stem [i = w'] [i' = w]

w is the word of the input.

`diagonal` is what an untied head would have, and all that `heads` keeps. `contact` is of order n,
but only for the output that is the token itself (erratum S2.11). Resolved forms: erratum S2.10.

In a Transformer, the leading terms come through the skip path (S2 footnotes 19 and 32): behind the
last norm, the word's own vector is W_kw / r_t with r_t^2 = G_tt + eps (times the same of a norm
behind the stem), so that

    E[z_i z_i']                       contact  n C_WE^2 / (r_t r_t')          [i = w] [i' = w']
    E[lambda_WE sum dz_i/dW dz_i'/dW] cross    2 Lambda_WE C_WE / (r_t r_t')  [i = w'] [i' = w]

are added to G and Theta of the outputs. Of n_vocab outputs it is one: in the mean over outputs,
`contact` is of order n / n_vocab and `cross` of order 1 / n_vocab, and both vanish for words that
are not asked about.
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
    """Terms of the linear model of S2 (1.85), exact at any width n."""
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
    """What a tied head adds for the outputs that are the words themselves: (points, points), or in
    the shape of G0."""

    kernel: Array  # to G, for i = w and i' = w'; per unit of width: times n
    ntk: Array  # to Theta, for i = w' and i' = w


def contact(
    streams: Sequence[Stream], stem_norm: bool, C_WE: float, rate: float, eps: float
) -> TiedContact:
    """Return both terms from the stream behind the stem, before a norm there, and the one before
    the last norm."""
    root = np.sqrt(streams[-1].G.diagonal() + eps)
    if stem_norm:
        root = root * np.sqrt(streams[0].G.diagonal() + eps)
    each = 1 / np.outer(root, root)
    shown = streams[-1].tokens.shown
    return TiedContact(shown(C_WE**2 * each), shown(2 * rate * C_WE * each))
