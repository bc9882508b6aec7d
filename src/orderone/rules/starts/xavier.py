"""The mean of fan-in and fan-out: a compromise between the sizes of outputs and of gradients.

    matrices    sqrt(2 / (fan_in + fan_out))

Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks",
equation (12). It is derived for matrices; lookup tables start as with `fan-in`.
"""

from orderone.core.roles import Role
from orderone.rules.starts.start import Facts, Start, order_one


def _size(tensor: Facts) -> float | None:
    if tensor.role == Role.VECTOR:
        return None
    if tensor.fan_in == 1:
        return order_one(tensor)
    return (2 / (tensor.fan_in + tensor.fan_out)) ** 0.5 / tensor.constant


XAVIER = Start(
    "xavier", "Glorot & Bengio 2010, equation (12)", "sqrt(2 / (fan_in + fan_out))", _size
)
