"""Small hand-written networks of many kinds, each as a function of its width.

`ARCHITECTURES` is the table of all of them. A record has a builder, a batch, a loss, and the roles
of its tensors, derived by hand.
"""

from support.architectures.architecture import Architecture
from support.architectures.others import OTHER_ARCHITECTURES
from support.architectures.sequences import SEQUENCE_ARCHITECTURES

__all__ = ["ARCHITECTURES", "Architecture"]

ARCHITECTURES: dict[str, Architecture] = {**SEQUENCE_ARCHITECTURES, **OTHER_ARCHITECTURES}
