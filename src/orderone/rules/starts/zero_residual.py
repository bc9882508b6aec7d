"""`fan-in`, with residual branches that start at zero: every block is the identity.

    last tensors of a residual branch    0: its last matrix and bias, or gain and shift of a norm
    others                               as `fan-in`

Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv:1706.02677, section 5.1 (last gain of a
residual block 0); Zhang, Dauphin & Ma 2019, "Fixup Initialization", arXiv:1901.09321 (last matrix).
"""

from orderone.core.roles import Role
from orderone.rules.starts.start import Facts, Start, order_one


def _size(tensor: Facts) -> float | None:
    if tensor.ends_branch:
        return 0.0
    if tensor.role == Role.VECTOR:
        return None
    return order_one(tensor)


ZERO_RESIDUAL = Start(
    "zero-residual",
    "Goyal et al. 2017, section 5.1; Zhang, Dauphin & Ma 2019",
    "last matrix of residual branches 0; others 1/sqrt(fan_in), lookup tables 1",
    _size,
    uses_branches=True,
)
