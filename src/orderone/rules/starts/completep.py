"""The initial sizes of CompleteP, with its proxy model of width 256 and two layers.

    lookup tables       s                         s = 0.02
    hidden matrices     s sqrt(256 / width)
    at branch ends      s sqrt(256 / width) 2 / layers
    readout             s 256 / width

Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers",
arXiv:2505.01618, Table 1. The constants are those of the code that the paper refers to
(nanoGPT-mup, branch completep: `init_std`, `mup_width_multiplier`, `depth_multiplier`). There,
2 / layers multiplies the branch and 256 / width the logits; here both are part of the initial
sizes. Together with `depth="completep"` the plan has the learning rates that belong to them,
relative to the base.
"""

from orderone.core.roles import Role
from orderone.rules.starts.start import Facts, Start

STD = 0.02
WIDTH = 256
LAYERS = 2


def _size(tensor: Facts) -> float | None:
    if tensor.role == Role.VECTOR:
        return None
    if tensor.role == Role.EMBEDDING:
        return STD
    if tensor.role == Role.READOUT:
        return STD * WIDTH / tensor.width
    size = STD * (WIDTH / tensor.width) ** 0.5
    if tensor.ends_branch:
        return size * LAYERS / tensor.layers
    return size


COMPLETEP = Start(
    "completep",
    "Dey et al. 2025, Table 1",
    "0.02 sqrt(256/width); branch ends times 2/layers; lookup tables 0.02",
    _size,
    uses_branches=True,
)
