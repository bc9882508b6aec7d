"""Sums of independent Gaussian parts, without cancellation: weights and bias, skip and branch.

    h = x + y,   q = q_x + q_y,   K = K_x + K_y,   u_a = (sqrt(q_x), sqrt(q_y)) / sqrt(q) = (cos 2s,
                                                   sin 2s)   of point a

    gap_ab = apart_ab + u_xa u_xb gap_x + u_ya u_yb gap_y,        apart_ab = 1 - u_a . u_b = 2 sin(s_a - s_b)^2

The last form is why gaps near 0 keep their digits: 1 - u_a . u_b is never computed as a difference
of ones. The same identity, read backwards, takes the mean out of an activation (layer norm).
"""

from dataclasses import dataclass

from array_api_compat import array_namespace

from orderone.core.inputs import Array
from orderone.theory.kernels.pairs import PerPoint, per_point
from orderone.theory.kernels.strips import Strip


@dataclass(frozen=True, eq=False)
class Mixture:
    """How two parts make up each point."""

    u: PerPoint
    left: Array  # (points, 2), sqrt(2) (sin s, cos s)
    right: Array  # (2, points), (cos s, -sin s)

    @classmethod
    def of(cls, dtype: object, x: Array, y: Array) -> "Mixture":
        """From the components of u, in double precision."""
        xp = array_namespace(x)
        cosine = ((1 + x) / 2) ** 0.5
        sine = y / (2 * cosine)
        left = xp.stack([sine, cosine], axis=1)
        right = xp.stack([cosine, -sine])
        return cls(per_point(dtype, x, y), xp.astype(2**0.5 * left, dtype), xp.astype(right, dtype))

    def first(self, strip: Strip) -> Array:
        """u_xa u_xb."""
        left, right = self.u.sides(strip)
        return left[0] * right[0]

    def second(self, strip: Strip) -> Array:
        """u_ya u_yb."""
        left, right = self.u.sides(strip)
        return left[1] * right[1]

    def apart(self, strip: Strip) -> Array | float:
        """1 - u_a . u_b."""
        if self.u.common:
            return 0.0
        root = self.left[strip.rows] @ self.right[:, strip.columns]
        root *= root
        return root


def shares(part: Array, rest: Array) -> tuple[Array, Array]:
    """u of each point, from the variances of its parts: (1, 0) if it has none, and all for one that
    overflowed."""
    xp = array_namespace(part)
    total = part + rest
    known = (total > 0) & xp.isfinite(total)
    fraction = xp.where(known, part / xp.where(known, total, 1.0), 1.0)
    return xp.sqrt(fraction), xp.sqrt(xp.where(known, rest / xp.where(known, total, 1.0), 0.0))
