"""Sums of independent Gaussian parts, without cancellation: weights and bias, skip and branch.

    h = x + y,   q = q_x + q_y,   K = K_x + K_y

    gap_ab   = apart_ab + u_xa u_xb gap_x + u_ya u_yb gap_y
    apart_ab = 1 - u_a . u_b = 2 sin(s_a - s_b)^2
    u_a      = (sqrt(q_x), sqrt(q_y)) / sqrt(q) = (cos 2s_a, sin 2s_a)       of point a

With the last form of apart_ab, gaps near 0 lose no digits: 1 - u_a . u_b is never computed as a
difference of numbers near 1. The inverse of this identity subtracts the mean of an activation
(layer norm).
"""

from dataclasses import dataclass

from array_api_compat import array_namespace

from orderone.core.inputs import Array
from orderone.theory.kernels.pairs import PerPoint, per_point
from orderone.theory.kernels.strips import Strip


@dataclass(frozen=True, eq=False)
class Mixture:
    """Shares of two parts in the variance of each point."""

    u: PerPoint
    left: Array  # (points, 2), sqrt(2) (sin s, cos s)
    right: Array  # (2, points), (cos s, -sin s)

    @classmethod
    def of(cls, dtype: object, x: Array, y: Array) -> "Mixture":
        """Make a mixture from the components of u, in double precision."""
        xp = array_namespace(x)
        cosine = ((1 + x) / 2) ** 0.5
        sine = y / (2 * cosine)
        left = xp.stack([sine, cosine], axis=1)
        right = xp.stack([cosine, -sine])
        return cls(per_point(dtype, x, y), xp.astype(2**0.5 * left, dtype), xp.astype(right, dtype))

    def first(self, strip: Strip) -> Array:
        """Return u_xa u_xb."""
        left, right = self.u.sides(strip)
        return left[0] * right[0]

    def second(self, strip: Strip) -> Array:
        """Return u_ya u_yb."""
        left, right = self.u.sides(strip)
        return left[1] * right[1]

    def apart(self, strip: Strip) -> Array | float:
        """Return 1 - u_a . u_b."""
        if self.u.common:
            return 0.0
        root = self.left[strip.rows] @ self.right[:, strip.columns]
        root *= root
        return root


def shares(part: Array, rest: Array) -> tuple[Array, Array]:
    """Return u of each point, from the variances of its parts.

    It is (1, 0) for points without variance, and for those whose variance overflowed.
    """
    xp = array_namespace(part)
    total = part + rest
    known = (total > 0) & xp.isfinite(total)
    safe_total = xp.where(known, total, 1.0)
    share = xp.where(known, part / safe_total, 1.0)
    rest_share = xp.where(known, rest / safe_total, 0.0)
    return xp.sqrt(share), xp.sqrt(rest_share)
