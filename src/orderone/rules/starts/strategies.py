"""The starts of the strategies of S2, with all constants C_G = 1.

    patch                          n_in^-1/2
    lookup tables (WE, PE)         1
    attention and MLP (QKVU, W, X) fan_in^-1/2
    head                           n^-(1+s)/2

s = 0 for neural-tangent, 1/2 for hybrid, 1 for maximal-update. Dinan, Yaida & Zhang 2023,
"Effective Theory of Transformers at Initialization", arXiv:2304.02034, (1.99)-(1.107) and erratum
S2.9. A head that is tied to the embedding has a multiplier there (1.24), which a start has not: the
table starts with the smaller of its two sizes, as with `fan-in`.
"""

from functools import partial

from orderone.core.roles import Role
from orderone.rules.starts.start import Facts, Start, order_one
from orderone.theory.scaling import group_std


def _size(strategy: str, tensor: Facts) -> float | None:
    if tensor.role == Role.VECTOR:
        return None
    if tensor.as_readout is not None:
        return order_one(tensor)
    if tensor.role == Role.READOUT:
        group = "head"
    else:
        group = tensor.group
    return group_std(strategy, group, tensor.fan_in) / tensor.constant


def _strategy(name: str, power: str) -> Start:
    return Start(
        name,
        "Dinan, Yaida & Zhang 2023, (1.99)-(1.107)",
        f"1/sqrt(fan_in); lookup tables 1; readout width^{power}",
        partial(_size, name),
    )


NEURAL_TANGENT = _strategy("neural-tangent", "-1/2")
HYBRID = _strategy("hybrid", "-3/4")
MAXIMAL_UPDATE = _strategy("maximal-update", "-1")
