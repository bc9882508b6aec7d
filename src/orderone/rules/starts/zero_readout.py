"""`fan-in`, with a readout of zero: all logits start at 0.

    readout of the model    0
    others                  as `fan-in`

Yang et al. 2022, "Tensor Programs V", arXiv:2203.03466, appendix D.2: the limit of infinite width
of muP has logits of 0, and a readout of zero makes small models start there too. A readout that is
tied to the embedding cannot be zero; it starts as with `fan-in`. Other matrices onto a fixed number
of outputs, such as routers, keep the size of `fan-in`.
"""

from orderone.core.roles import Role
from orderone.rules.starts.start import Facts, Start, order_one


def _size(tensor: Facts) -> float | None:
    if tensor.role == Role.VECTOR:
        return None
    if tensor.is_output and tensor.role == Role.READOUT:
        return 0.0
    return order_one(tensor)


ZERO_READOUT = Start(
    "zero-readout",
    "Yang et al. 2022, appendix D.2",
    "readout 0; others 1/sqrt(fan_in), lookup tables 1",
    _size,
)
