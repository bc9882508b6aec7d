"""Kernels against another program, for one network of each kind."""

import numpy as np
import pytest

from orderone.theory.kernels import (
    Activation,
    AveragePool,
    Dense,
    Dropout,
    LayerNorm,
    Residual,
    Sequential,
    inputs,
)

X = np.array([[1.0, 2, -1, 0.5], [0.3, -1, 2, 1], [1.1, 1.9, -1, 0.4], [-1, -2, 1, -0.5]])
TOKENS = np.stack([X, X[::-1] * 0.7 + 0.2, X**2 - 1])

NETWORKS = {
    "relu": Sequential(
        Dense(2, 0.1), Activation("relu"), Dense(1.5, 0.2), Activation("relu"), Dense()
    ),
    "erf": Sequential(
        Dense(2, 0.1), Activation("erf"), Dense(1.5, 0.2), Activation("erf"), Dense()
    ),
    "gelu": Sequential(
        Dense(2, 0.1), Activation("gelu"), Dense(1.5, 0.2), Activation("gelu"), Dense()
    ),
    "dropout": Sequential(
        *(
            Dense(2, 0.1),
            Activation("relu"),
            Dropout(0.8),
            Dense(1.5, 0.2),
            Activation("erf"),
            Dropout(0.5),
        ),
        Dense(1, 0.3),
    ),
    "residual": Sequential(
        Dense(2, 0.1),
        Residual(Activation("relu"), Dense(1.5, 0.2), scale=0.5),
        Activation("relu"),
        Dense(1, 0.1),
    ),
    "layernorm": Sequential(
        *(
            Dense(2, 0.1),
            LayerNorm(1e-3),
            Activation("relu"),
            Dense(1.5, 0.2),
            LayerNorm(1e-3),
            Activation("erf"),
        ),
        Dense(1, 0.1),
    ),
    "pool": Sequential(
        *(Dense(2, 0.1), Activation("relu"), Dense(1.5, 0.2), Activation("relu"), AveragePool()),
        Dense(1, 0.1),
    ),
}
# Upper triangles, row by row: neural-tangents 0.6.5 (stax, jax 0.5.3, double precision) for the
# same networks.
PEER = """
relu nngp 1.309375 0.54015374 1.281319 0.47095512 \
1.279375 0.5293675 0.93280018 1.25875 0.46303121 1.309375
relu ntk 3.828125 0.56728564 3.6705064 0.45927915 \
3.738125 0.55529693 1.8720507 3.67625 0.451356 3.828125
erf nngp 0.49882329 -0.075351708 0.49621811 -0.2723117 \
0.49795089 -0.076928134 0.25349916 0.4973311 -0.26952078 0.49882329
erf ntk 2.0066531 -0.31186734 1.9805535 -1.1096302 \
1.9940213 -0.31718115 0.72343497 1.9852007 -1.0934748 2.0066531
gelu nngp 1.1779494 0.36402137 1.1493888 0.30921671 \
1.1474718 0.3541446 0.76176069 1.1265232 0.30167451 1.1779494
gelu ntk 3.6308784 0.35313715 3.5349113 0.30185311 \
3.5359689 0.34247187 1.6859226 3.4707093 0.29322197 3.6308784
dropout nngp 1.6325446 0.38380757 0.79383907 0.33613737 \
1.6255558 0.38345071 0.60693077 1.6206216 0.33689131 1.6325446
dropout ntk 5.9002377 0.40069531 1.9819093 0.3285303 \
5.8364833 0.39987349 1.1089121 5.7920904 0.32916038 5.9002377
residual nngp 2.0398438 0.40504102 1.9953769 0.16665981 \
1.9923438 0.39554517 1.3383217 1.9596875 0.16673148 2.0398438
residual ntk 4.2820313 0.12256767 4.1345931 -0.17065117 \
4.1795313 0.11682719 2.1437902 4.1090625 -0.16477026 4.2820313
layernorm nngp 0.56435931 0.23003888 0.56340877 0.19120952 \
0.56435931 0.22940987 0.41343524 0.56435931 0.19134486 0.56435931
layernorm ntk 1.5826311 0.30651684 1.5690709 0.24727987 \
1.5826303 0.30492817 0.89271939 1.5826298 0.24668611 1.5826311
pool nngp 0.94950803 0.7754048 1.0272809 0.65453033 0.85088264 1.6027987
pool ntk 1.9888859 1.5366982 1.7881361 1.3332948 1.4853683 3.9307395
"""


@pytest.mark.parametrize("line", PEER.strip().splitlines())
def test_agrees_with_neural_tangents(line):
    name, kind, *numbers = line.split()
    kernel = getattr(NETWORKS[name](inputs(TOKENS if name == "pool" else X)), kind)
    assert kernel[np.triu_indices(len(kernel))] == pytest.approx(
        [float(number) for number in numbers], rel=1e-7
    )
