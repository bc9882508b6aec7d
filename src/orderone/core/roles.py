"""Roles of parameter tensors, as muP distinguishes them."""

from enum import StrEnum


class Role(StrEnum):
    """Role of a tensor as the width n grows; compares and prints like its plain string."""

    EMBEDDING = "embedding"  # fan-in fixed, fan-out grows: input weights, lookup tables
    HIDDEN = "hidden"  # fan-in and fan-out grow
    READOUT = "readout"  # fan-in grows, fan-out fixed: output weights
    VECTOR = "vector"  # one entry per channel: biases and gains
    FIXED = "fixed"  # no dimension grows

    def __repr__(self) -> str:
        return repr(self.value)


MATRIX_ROLES = (Role.EMBEDDING, Role.HIDDEN, Role.READOUT)
ROLES = (*MATRIX_ROLES, Role.VECTOR)
