"""Variance 1 / fan-in for matrices, 1 for lookup tables: every output is of order one.

    matrices         1 / sqrt(fan_in)
    lookup tables    1
    tied tables      1 / sqrt(width), see `start`

LeCun, Bottou, Orr & Mueller 1998, "Efficient BackProp", section 4.6. For embeddings of size one see
Yang et al. 2022, "Tensor Programs V", arXiv:2203.03466, Table 8 (a fan-in of one-hot inputs is 1).
"""

from orderone.core.roles import Role
from orderone.rules.starts.start import Facts, Start, order_one


def _size(tensor: Facts) -> float | None:
    if tensor.role == Role.VECTOR:
        return None
    return order_one(tensor)


FAN_IN = Start("fan-in", "LeCun et al. 1998, section 4.6", "1/sqrt(fan_in); lookup tables 1", _size)
