"""Every layer against closed forms, against another program, and against what must hold of any kernel."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orderone.theory import kernels
from orderone.theory.kernels import (
    Activation, AveragePool, Dense, Dropout, LayerNorm, Residual, RMSNorm, Sequential, covariance, inputs, repeat,
)  # fmt: skip

X = np.array([[1.0, 2, -1, 0.5], [0.3, -1, 2, 1], [1.1, 1.9, -1, 0.4], [-1, -2, 1, -0.5]])
TOKENS = np.stack([X, X[::-1] * 0.7 + 0.2, X**2 - 1])

NETWORKS = {
    "relu": Sequential(Dense(2, 0.1), Activation("relu"), Dense(1.5, 0.2), Activation("relu"), Dense()),
    "erf": Sequential(Dense(2, 0.1), Activation("erf"), Dense(1.5, 0.2), Activation("erf"), Dense()),
    "gelu": Sequential(Dense(2, 0.1), Activation("gelu"), Dense(1.5, 0.2), Activation("gelu"), Dense()),
    "dropout": Sequential(
        *(Dense(2, 0.1), Activation("relu"), Dropout(0.8), Dense(1.5, 0.2), Activation("erf"), Dropout(0.5)),
        Dense(1, 0.3),
    ),
    "residual": Sequential(
        Dense(2, 0.1),
        Residual(Activation("relu"), Dense(1.5, 0.2), scale=0.5),
        Activation("relu"),
        Dense(1, 0.1),
    ),
    "layernorm": Sequential(
        *(Dense(2, 0.1), LayerNorm(1e-3), Activation("relu"), Dense(1.5, 0.2), LayerNorm(1e-3), Activation("erf")),
        Dense(1, 0.1),
    ),
    "pool": Sequential(
        *(Dense(2, 0.1), Activation("relu"), Dense(1.5, 0.2), Activation("relu"), AveragePool()),
        Dense(1, 0.1),
    ),
}
# NNGP and NTK, upper triangles row by row: neural-tangents 0.6.5 (stax, jax 0.5.3, double precision) for the same networks
PEER = {
    "relu": (
        [1.309375, 0.540153739949, 1.28131901445, 0.470955117871, 1.279375, 0.529367501095, 0.932800178982, 1.25875, 0.463031209724, 1.309375],
        [3.828125, 0.567285638223, 3.67050636636, 0.459279151852, 3.738125, 0.555296929838, 1.87205071587, 3.67625, 0.451356003046, 3.828125],
    ),
    "erf": (
        [0.498823285382, -0.075351707668, 0.496218108562, -0.272311699057, 0.497950890897, -0.076928133789, 0.253499159239, 0.49733109554, -0.269520777829, 0.498823285382],
        [2.00665314292, -0.311867339233, 1.98055354994, -1.10963018843, 1.99402129118, -0.317181146309, 0.723434973295, 1.98520073335, -1.0934747777, 2.00665314292],
    ),
    "gelu": (
        [1.17794943949, 0.364021369944, 1.14938878089, 0.309216714645, 1.14747180822, 0.354144601421, 0.761760694347, 1.12652321395, 0.301674514035, 1.17794943949],
        [3.6308784378, 0.353137153399, 3.5349112593, 0.301853105219, 3.53596892463, 0.342471869456, 1.68592259641, 3.47070926719, 0.293221974194, 3.6308784378],
    ),
    "dropout": (
        [1.63254455396, 0.383807573301, 0.793839070948, 0.336137365734, 1.62555579148, 0.383450705825, 0.606930765921, 1.6206216072, 0.336891310469, 1.63254455396],
        [5.90023774586, 0.400695313896, 1.98190926016, 0.328530303985, 5.83648330957, 0.399873492853, 1.1089121463, 5.79209038044, 0.329160383161, 5.90023774586],
    ),
    "residual": (
        [2.03984375, 0.405041018669, 1.99537687722, 0.166659809643, 1.99234375, 0.395545165254, 1.33832166708, 1.9596875, 0.166731480623, 2.03984375],
        [4.28203125, 0.122567665436, 4.13459307929, -0.170651168631, 4.17953125, 0.116827187944, 2.14379015113, 4.1090625, -0.16477025709, 4.28203125],
    ),
    "layernorm": (
        [0.564359310634, 0.230038881052, 0.563408766217, 0.191209520466, 0.564359309391, 0.229409868251, 0.413435235125, 0.564359308499, 0.191344864331, 0.564359310634],
        [1.5826310537, 0.306516837145, 1.56907088214, 0.247279867575, 1.58263030256, 0.304928174385, 0.892719391694, 1.5826297636, 0.246686105054, 1.5826310537],
    ),
    "pool": (
        [0.949508032758, 0.775404804681, 1.02728088346, 0.654530326654, 0.8508826416, 1.60279865142],
        [1.98888591315, 1.53669821248, 1.78813605442, 1.33329482655, 1.48536828733, 3.93073947816],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_neural_tangents(name):
    k = NETWORKS[name](inputs(TOKENS if name == "pool" else X))
    nngp, ntk = PEER[name]
    upper = np.triu_indices(len(k.nngp))
    assert k.nngp[upper] == pytest.approx(nngp, rel=1e-10)
    assert k.ntk[upper] == pytest.approx(ntk, rel=1e-10)
