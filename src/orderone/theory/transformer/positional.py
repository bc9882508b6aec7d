"""Attention whose scores depend on positions, or whose map is not a plain softmax.

Rotary positions turn the channels of query t and key s by angles theta_j t and theta_j s. The
scores of two query-key pairs then have the covariance

    E[x_ts x_ur] = C_Q C_K F_tu F'_sr g((s - t) - (r - u)),     g(x) = mean over j of cos(theta_j x)

with F of the queries and F' of the keys. g is positive semidefinite, so that it is a sum
g(x - y) = sum_k c_k(x) c_k(y), and scores are drawn for all queries at once:

    x_ts = sqrt(C_Q C_K) sum_k c_k(s - t) (A Z_k B^T)_ts,        A A^T = F,  B B^T = F'

Angles are base^(-2j / C) for heads of C channels; for large heads g(x) is
(Ci(x) - Ci(x / base)) / ln(base). Su et al. 2021, "RoFormer".

The attention of a query is

    Omega_t = i e_t + softmax(x_t + bias_t) - c u_t

with u_t uniform over visible keys: i = c = 1 is shaped attention (Noci et al. 2023, "The Shaped
Transformer"); i = c = 0 is the softmax. The averages are those of the module `attention`. Its
`bend` needs the matrix

    W_tu = E[dp_t F_v dp_u],     (W_tu)_kl = E[p_tk q_ul (F_kl - (p_t F)_l - (F q_u)_k + p_t F q_u)]

for every pair of queries, and bend_tu[M] = sum over k, l of W_kl M_kl g((k - t) - (l - u)).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import sici

from orderone.core.errors import InputError
from orderone.theory.transformer.moments import FORWARD, Averages, softmax
from orderone.theory.transformer.points import REPETITIONS, factor, mirrored, standard
from orderone.theory.transformer.stream import Stream

MOST_POINTS = 2**13  # of a randomization
FEWEST_POINTS = 2**5
WORK = 2 * 10**10  # multiplications of all randomizations
LARGEST_MATRICES = 2**26  # numbers of W, for two sequences
HELD = 2**21  # numbers in memory for the scores of some points
NEGLIGIBLE = 1e-10  # part of g that is rounding


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary positions; `channels` of a head, or None for large heads."""

    base: float
    channels: int | None = None

    def overlap(self, distance: np.ndarray) -> np.ndarray:
        """Return g at differences of positions."""
        x = np.abs(np.asarray(distance, dtype=float))
        if self.channels is not None:
            half = self.channels // 2
            angles = self.base ** (-np.arange(half) / half)
            return np.cos(np.multiply.outer(x, angles)).mean(axis=-1)
        safe = np.where(x > 0, x, 1.0)
        integral = sici(safe)[1] - sici(safe / self.base)[1]
        return np.where(x > 0, integral / np.log(self.base), 1.0)


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """From scores to attention: positions, additive biases, and shaping."""

    rotary: Rotary | None = None
    bias: np.ndarray | None = None  # (queries, keys) of a sequence, added to scores
    identity: float = 0.0
    centre: float = 0.0

    @property
    def plain(self) -> bool:
        """Return whether this is the softmax of scores without positions."""
        return self.rotary is None and self.bias is None and self.identity == self.centre == 0


def direct_averages(
    queries: Stream,
    keys: Stream,
    values: Stream,
    along: Mapping[str, tuple[np.ndarray, np.ndarray]],
    visible: np.ndarray,
    strength: float,
    chosen: AttentionMap,
    accuracy: float,
    seed: int,
) -> Averages:
    """Return the averages of each randomization: (repetitions, queries, queries).

    `along` has the tangent kernels of keys and values of each group.
    """
    draw = _Draw(queries, keys, values, along, visible, strength, chosen)
    points = FEWEST_POINTS
    most = draw.most_points
    goal = accuracy * (float(np.abs(values.G).max()) or 1.0)
    while True:
        repeated = [draw.repetition(points, seed, k) for k in range(REPETITIONS)]
        result = {key: np.stack([each[key] for each in repeated]) for key in repeated[0]}
        spread = result["value", FORWARD].std(axis=0, ddof=1).max() / REPETITIONS**0.5
        if spread <= goal or points >= most:
            return result
        wanted = points * max(2.0, (spread / goal) ** 1.5)
        points = min(most, 1 << int(np.ceil(np.log2(min(wanted, most)))))


@dataclass(frozen=True, eq=False)
class _Draw:
    queries: Stream
    keys: Stream
    values: Stream
    along: Mapping[str, tuple[np.ndarray, np.ndarray]]
    visible: np.ndarray
    strength: float
    chosen: AttentionMap

    @property
    def most_points(self) -> int:
        """Return the largest number of points of a randomization, a power of two."""
        sequences, _, length = self.visible.shape
        pairs = sequences * (sequences + 1) // 2
        per_point = self._normals + pairs * length**2 * self.visible.shape[1]
        if self.along:
            matrices = (self.visible.shape[1] * length) ** 2
            if matrices > LARGEST_MATRICES:
                raise InputError(
                    "tokens: expected at most 90 tokens of a sequence for tangent kernels of"
                    f" attention with positions or shaping, got {length}; kernels without tangent"
                    " kernels take more",
                    argument="tokens",
                )
            per_point += 4 * pairs * matrices
        points = max(FEWEST_POINTS, WORK // per_point // REPETITIONS)
        return min(MOST_POINTS, 1 << int(points).bit_length() - 1)

    @property
    def _normals(self) -> int:
        return len(self.queries.G) * len(self.keys.G) * max(1, len(self._parts()))

    def _parts(self) -> np.ndarray:
        """Return c_k of query-key pairs, (parts, queries, keys) of a sequence."""
        _, rows, columns = self.visible.shape
        offsets = np.arange(columns)[None, :] - np.arange(rows)[:, None] + rows - 1
        if self.chosen.rotary is None:
            return np.ones((1, rows, columns))
        all_offsets = np.arange(rows + columns - 1)
        g = self.chosen.rotary.overlap(all_offsets[:, None] - all_offsets)
        parts, _ = factor(g, negligible=NEGLIGIBLE)
        return parts.T[:, offsets]

    def _overlap(self) -> np.ndarray:
        """Return g of two query-key pairs, (queries, keys, queries, keys)."""
        parts = self._parts()
        return np.einsum("kts,kur->tsur", parts, parts)

    def repetition(self, points: int, seed: int, repetition: int) -> Averages:
        """Return the averages over the points of one randomization."""
        pairs = self._pairs()
        overlap = self._overlap() if self.along else None
        result: Averages = {}
        names = [FORWARD, *self.along]
        kinds = [("value", name) for name in names] + [("square", FORWARD)]
        if self.along:
            kinds += [("bend", name) for name in names]
        for key in kinds:
            result[key] = np.zeros_like(self.queries.G)
        matrices = {}
        drawn = 0
        for attention, softened in self._attention(points, seed, repetition):
            drawn += len(attention[0])
            for a, b in pairs:
                self._add_values(result, attention, a, b)
                if self.along:
                    F = self.values.G[self.keys.tokens.of(a), self.keys.tokens.of(b)]
                    total = _bent(softened[a], softened[b], F)
                    matrices[a, b] = matrices[a, b] + total if (a, b) in matrices else total
        for (a, b), total in matrices.items():
            assert overlap is not None
            self._add_bends(result, total * overlap, a, b)
        for key in result:
            result[key] /= drawn
        return result

    def _pairs(self) -> list[tuple[int, int]]:
        sequences = self.keys.tokens.sequences
        return [(a, b) for a in range(sequences) for b in range(a, sequences)]

    def _attention(
        self, points: int, seed: int, repetition: int
    ) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Yield Omega and the softmax of every sequence, (points, queries, keys) each."""
        A = factor(self.queries.G)[0]
        B = factor(self.keys.G)[0]
        parts = self._parts()
        shape = (len(parts), A.shape[1], B.shape[1])
        size = int(np.prod(shape))
        # the largest directions come first, because Sobol numbers are best there
        weight = np.einsum("k,a,b->kab", *((x**2).sum(axis) for x, axis in _axes(parts, A, B)))
        order = np.argsort(-weight.ravel(), kind="stable")
        at_once = max(1, HELD // max(size, self.visible.size, 1))
        step = 1 << at_once.bit_length() - 1
        for normals in standard(size, points // 2, seed, repetition, step):
            Z = np.empty(normals.shape)
            Z[:, order] = normals
            yield self._mapped(mirrored(Z, axis=0).reshape(-1, *shape), A, B, parts)

    def _mapped(
        self, Z: np.ndarray, A: np.ndarray, B: np.ndarray, parts: np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        chosen = self.chosen
        attention = []
        softened = []
        for sequence, visible in enumerate(self.visible):
            rows = self.queries.tokens.of(sequence)
            keys = self.keys.tokens.of(sequence)
            fields = A[rows] @ Z @ B[keys].T
            scores = self.strength**0.5 * np.einsum("xkts,kts->xts", fields, parts)
            if chosen.bias is not None:
                scores = scores + chosen.bias
            p = softmax(scores, visible)
            softened.append(p)
            if chosen.identity or chosen.centre:
                uniform = visible / visible.sum(axis=1, keepdims=True)
                p = p + chosen.identity * np.eye(*visible.shape) - chosen.centre * uniform
            attention.append(p)
        return attention, softened

    def _add_values(self, result: Averages, attention: list[np.ndarray], a: int, b: int) -> None:
        keys = np.s_[self.keys.tokens.of(a), self.keys.tokens.of(b)]
        kernels = {FORWARD: self.values.G}
        for name, (_, of_values) in self.along.items():
            kernels[name] = of_values
        for name, M in kernels.items():
            each = (attention[a] @ M[keys]) @ attention[b].transpose(0, 2, 1)
            self._add(result["value", name], each.sum(axis=0), a, b)
            if name == FORWARD:
                self._add(result["square", FORWARD], (each**2).sum(axis=0), a, b)

    def _add_bends(self, result: Averages, matrices: np.ndarray, a: int, b: int) -> None:
        keys = np.s_[self.keys.tokens.of(a), self.keys.tokens.of(b)]
        kernels = {FORWARD: self.keys.G}
        for name, (of_keys, _) in self.along.items():
            kernels[name] = of_keys
        for name, M in kernels.items():
            bend = np.einsum("tkul,kl->tu", matrices, M[keys])
            self._add(result["bend", name], bend, a, b)

    def _add(self, target: np.ndarray, block: np.ndarray, a: int, b: int) -> None:
        """Add a block of queries of two sequences to both triangles."""
        rows = self.queries.tokens.of(a)
        columns = self.queries.tokens.of(b)
        if a == b:
            target[rows, rows] += (block + block.T) / 2
        else:
            target[rows, columns] += block
            target[columns, rows] += block.T


def _axes(
    parts: np.ndarray, A: np.ndarray, B: np.ndarray
) -> list[tuple[np.ndarray, int | tuple[int, int]]]:
    return [(parts, (1, 2)), (A, 0), (B, 0)]


def _bent(p: np.ndarray, q: np.ndarray, F: np.ndarray) -> np.ndarray:
    """Return the sum over points of W, (queries, keys, queries, keys)."""
    points, t, k = p.shape
    u = q.shape[1]
    pF = p @ F
    qF = q @ F.T
    flat_p = p.reshape(points, -1)
    flat_q = q.reshape(points, -1)
    W = (flat_p.T @ flat_q).reshape(t, k, u, -1) * F[:, None, :]
    each = pF @ q.transpose(0, 2, 1)  # (points, t, u)
    for row in range(t):
        # p_tk (p_t F q_u - (p_t F)_l) q_ul
        right = q * (each[:, row, :, None] - pF[:, row, None, :])
        W[row] += (p[:, row].T @ right.reshape(points, -1)).reshape(k, u, -1)
    for column in range(u):
        left = p * qF[:, column, None, :]
        product = left.reshape(points, -1).T @ q[:, column]
        W[:, :, column] -= product.reshape(t, k, -1)
    return W
