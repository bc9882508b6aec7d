"""What tying the head to the embedding correlates, in a model where all of it can be written down. S2 (1.85), (1.187).

    z_i = n^-1/2 sum_jk W_ji (V_jk + delta_jk) W_kw         W ~ N(0, C_WE),   V ~ N(0, C_W / n),   w the word

    E[z_i z_i']                      = diagonal [i = i'] [w = w'] + contact [i = w] [i' = w'] + swap [i = w'] [i' = w]
    E[sum dz_i/dW|head dz_i'/dW|stem] = head_stem [i = w'] [i' = w]

`diagonal` is what an untied head would have, and all that `heads` keeps. `contact` is of order n, but only for the output
that is the token itself (erratum S2.11). Resolved forms: erratum S2.10.
"""

from typing import NamedTuple

from orderone.core.exact import count
from orderone.core.given import Count, Number
from orderone.core.reals import real


class TiedTerms(NamedTuple):
    diagonal: float
    contact: float
    swap: float
    head_stem: float


def tied_terms(n: Count, C_WE: Number = 1.0, C_W: Number = 1.0) -> TiedTerms:
    """Of the linear model above, exact at any width n."""
    n, C_WE, C_W = count(n, "n"), real(C_WE, "C_WE", least=0), real(C_W, "C_W", least=0)
    return TiedTerms(C_WE**2 * (C_W + 1), C_WE**2 * (n + C_W / n), C_WE**2 * (1 + C_W / n), C_WE * (1 + C_W / n))
