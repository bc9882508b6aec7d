"""Scores of attention at initialization: covariance, moments, and averages of attention.

    s_tt'  = C^{-1/2} sum_c q_tc k_t'c,         q = W_Q z,   k = W_K z
    E[s_(t1 t1') s_(t2 t2')]  = C_Q C_K F_(t1 t2) F_(t1' t2')                   S2 (1.61), (A3)-(A4)
    E[s_1 ... s_(2m)]         = (C_Q C_K)^m sum over pairings p of queries and r of keys of
                                C^(loops(p, r) - m) prod F_p prod F'_r                  S2 (A5)-(A7)

Odd moments vanish. loops(p, r) is the number of cycles of the two pairings together; it is m if
they agree, which is Wick's theorem, and smaller otherwise. So scores are Gaussian for large heads,
with corrections of order 1 / C (S2 (A6) keeps the first term only). The formula is exact for
Gaussian weights at fixed inputs of kernel F.

    E[Omega_(t1 t1') Omega_(t2 t2')]                                            S2 (1.64)-(1.65)

is an average over Gaussian scores, of the softmax or any other map from scores to attention
(S2 footnote 5).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np

from orderone.core.errors import InputError, instance
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, Flag, Number, UserInput
from orderone.core.reals import real
from orderone.theory.transformer.inputs import MaskInput
from orderone.theory.transformer.moments import softmax
from orderone.theory.transformer.points import REPETITIONS, factor, mirrored, standard
from orderone.theory.transformer.tokens import read
from orderone.theory.transformer.views import read_mask

MOST_TOKENS = 32  # E[Omega Omega] has tokens^4 entries
MOST_SCORES = 8  # (2m - 1)!! pairings of each kind
AT_ONCE = 2**22  # numbers in memory

# pairs (query token, key token)
Pairs: TypeAlias = Annotated[Sequence[tuple[int, int]], UserInput]
# from scores (points, queries, keys) to attention of the same shape
AttentionMap: TypeAlias = Annotated[Callable[[np.ndarray], np.ndarray] | None, UserInput]


@dataclass(frozen=True, eq=False)
class AttentionProducts:
    """E[Omega Omega] with indices (query, key, query, key), and its standard errors."""

    products: np.ndarray
    errors: np.ndarray

    def value(self, F: ArrayLike) -> np.ndarray:
        """Return R, the kernel of attended values: sum of E[Omega Omega] F over both keys."""
        matrix, _ = read(F, name="F")
        return np.einsum("tsur,sr->tu", self.products, matrix)


def score_covariance(F: ArrayLike, C_Q: Number = 1.0, C_K: Number = 1.0) -> np.ndarray:
    """Return the covariance of scores, with indices (query, key, query, key): S2 (A4)."""
    matrix, _ = read(F, name="F")
    strength = real(C_Q, "C_Q", least=0) * real(C_K, "C_K", least=0)
    return strength * np.einsum("tu,sr->tsur", matrix, matrix)


def score_moment(
    pairs: Pairs,
    F: ArrayLike,
    C_Q: Number = 1.0,
    C_K: Number = 1.0,
    head_size: Count | None = None,
) -> float:
    """Return the mean of the product of scores of one head, for pairs (query, key) of tokens.

    `head_size` is C; None is the limit of large heads, where scores are Gaussian.
    """
    matrix, _ = read(F, name="F")
    tokens = _pairs(pairs, len(matrix))
    strength = real(C_Q, "C_Q", least=0) * real(C_K, "C_K", least=0)
    if head_size is None:
        size = None
    else:
        size = count(head_size, "head_size")
    if len(tokens) % 2:
        return 0.0
    m = len(tokens) // 2
    pairings = list(_pairings(list(range(len(tokens)))))
    total = 0.0
    for of_queries in pairings:
        queries = _product(matrix, tokens, of_queries, side=0)
        for of_keys in pairings if size is not None else [of_queries]:
            keys = _product(matrix, tokens, of_keys, side=1)
            weight = 1.0
            if size is not None:
                weight = float(size) ** (_loops(of_queries, of_keys) - m)
            total += weight * queries * keys
    return strength**m * total


def _product(
    matrix: np.ndarray, tokens: list[tuple[int, int]], pairing: list[tuple[int, int]], side: int
) -> float:
    """Return prod F over a pairing of the queries (side 0) or the keys (side 1)."""
    result = 1.0
    for a, b in pairing:
        result *= matrix[tokens[a][side], tokens[b][side]]
    return result


def attention_products(
    F: ArrayLike,
    C_Q: Number = 1.0,
    C_K: Number = 1.0,
    *,
    attention: AttentionMap = None,
    mask: MaskInput = None,
    causal: Flag = False,
    points: Count = 1024,
    seed: Count = 0,
) -> AttentionProducts:
    """Return E[Omega Omega] of one sequence, from eight randomizations of `points` points.

    `attention` maps scores to attention, by default their softmax over visible keys; another map
    gets scores of shape (points, queries, keys), with -inf where a key is not visible.
    """
    matrix, tokens = read(F, name="F")
    if len(matrix) > MOST_TOKENS:
        raise InputError(
            f"F: expected at most {MOST_TOKENS} tokens, because there are tokens^4 products; got"
            f" {len(matrix)}; Transformer.kernels needs none of them",
            argument="F",
        )
    number = count(points, "points", least=8, most=2**16)
    seed = count(seed, "seed", least=0)
    strength = real(C_Q, "C_Q", least=0) * real(C_K, "C_K", least=0)
    causal = instance(causal, bool, "causal", "pass True or False")
    visible = read_mask(mask, tokens, tokens, causal)[0]
    root, _ = factor(matrix)
    step = 1 << max(3, (AT_ONCE // len(matrix) ** 4).bit_length() - 1)
    repeated = []
    for repetition in range(REPETITIONS):
        normals = standard(root.shape[1] ** 2, number // 2, seed, repetition, step)
        repeated.append(_mean_products(normals, root, strength, visible, attention))
    products = np.mean(repeated, axis=0)
    errors = np.std(repeated, axis=0, ddof=1) / REPETITIONS**0.5
    return AttentionProducts(products, errors)


def _mean_products(
    normals: Iterable[np.ndarray],
    root: np.ndarray,
    strength: float,
    visible: np.ndarray,
    attention: AttentionMap,
) -> np.ndarray:
    """Return the mean of Omega Omega over scores that are drawn from standard normal numbers.

    `root` is a square root of F; `strength` is C_Q C_K.
    """
    tokens, directions = root.shape
    total = np.zeros([tokens] * 4)
    drawn = 0
    for chunk in normals:
        z = mirrored(chunk.reshape(-1, directions, directions).astype(float), axis=0)
        p = _attended(strength**0.5 * (root @ z @ root.T), visible, attention)
        total += np.einsum("xts,xur->tsur", p, p, optimize=True)
        drawn += len(p)
    return total / drawn


def _attended(scores: np.ndarray, visible: np.ndarray, attention: AttentionMap) -> np.ndarray:
    if attention is None:
        return softmax(scores, visible)
    hidden = np.where(visible, scores, -np.inf)
    result = np.asarray(attention(hidden), dtype=float)
    if result.shape != scores.shape or not np.isfinite(result).all():
        raise InputError(
            f"attention: expected a function that returns finite weights of shape {scores.shape},"
            f" got the shape {result.shape}; hidden keys have the score -inf",
            argument="attention",
        )
    return result


def _pairs(pairs: Pairs, tokens: int) -> list[tuple[int, int]]:
    try:
        result = [(count(q, "pairs", least=0), count(k, "pairs", least=0)) for q, k in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"pairs: expected pairs (query, key) of tokens, as [(0, 1), (0, 1)]; got {pairs!r}",
            argument="pairs",
        ) from None
    if len(result) > MOST_SCORES or any(max(pair) >= tokens for pair in result):
        raise InputError(
            f"pairs: expected at most {MOST_SCORES} pairs of tokens below {tokens}",
            argument="pairs",
        )
    return result


def _pairings(items: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield all ways to arrange items in pairs."""
    if not items:
        yield []
        return
    first = items[0]
    for i in range(1, len(items)):
        rest = items[1:i] + items[i + 1 :]
        for others in _pairings(rest):
            yield [(first, items[i]), *others]


def _loops(first: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    """Return the number of cycles of two pairings together."""
    partner = dict(first) | {b: a for a, b in first}
    across = dict(other) | {b: a for a, b in other}
    remaining = set(partner)
    loops = 0
    while remaining:
        loops += 1
        item = next(iter(remaining))
        while item in remaining:
            remaining.discard(item)
            item = partner[item]
            remaining.discard(item)
            item = across[item]
    return loops
