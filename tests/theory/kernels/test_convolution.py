"""Kernels of convolutional networks against neural-tangents, and against sums written out."""

from typing import Any

import numpy as np
import pytest
from support.errors import refuses

from orderone.theory import kernels
from orderone.theory.kernels import (
    Activation,
    AveragePool,
    Conv,
    Dense,
    Flatten,
    LocalAveragePool,
    Residual,
    Scale,
    Sequential,
    Sum,
)

IMAGES = np.random.default_rng(0).normal(size=(3, 6, 5, 2)).round(2)
RELU, ERF = Activation("relu"), Activation("erf")
SAME = Conv(3, 2.0, 0.1, padding=1)
NETWORKS = {
    "flatten": Sequential(SAME, RELU, Conv((3, 2), 2.0, 0.1), ERF, Flatten(), Dense(1.5, 0.2)),
    "gap": Sequential(SAME, RELU, Conv(1, 1.0), AveragePool(), Dense()),
    "avgpool": Sequential(SAME, RELU, LocalAveragePool(2), SAME, RELU, Flatten(), Dense()),
    "residual": Sequential(
        *(SAME, Residual(RELU, Conv(3, 1.5, 0.1, padding=1)), RELU, AveragePool(), Dense())
    ),
}
# Upper triangles: neural-tangents 0.6.5 (stax, jax 0.5.3, double precision), NHWC.
PEER = {
    "flatten": (
        [
            1.0128767362939695,
            0.42894592338329496,
            0.44445042189699746,
            1.0570945334240929,
            0.47872885550257827,
            1.0300517690513236,
        ],
        [
            3.127942999456759,
            0.6366240223584716,
            0.6791466477553896,
            3.4151731855003407,
            0.7844877614669727,
            3.2903612238889037,
        ],
    ),
    "avgpool": (
        [
            0.24421856864137323,
            0.18554782066191944,
            0.18157817363590992,
            0.2666132783805244,
            0.20326060950090988,
            0.24216937756964732,
        ],
        [
            0.6006397788495778,
            0.3144487374939704,
            0.3147735002611447,
            0.6561186374009698,
            0.37561615389650715,
            0.5932444113180451,
        ],
    ),
    "residual": (
        [
            0.5042908626964658,
            0.5064208782753811,
            0.4942912988629061,
            0.5552931099189856,
            0.5282479306071276,
            0.5257054716016872,
        ],
        [
            0.701738650645259,
            0.6502557281895761,
            0.6385613737826463,
            0.7448849378901471,
            0.6791132287296748,
            0.7086232456606013,
        ],
    ),
}


@pytest.mark.parametrize("name", PEER)
def test_peer(name: str):
    k = NETWORKS[name](kernels.inputs(IMAGES))
    upper = np.triu_indices(3)
    np.testing.assert_allclose(k.nngp[upper], PEER[name][0], rtol=1e-9)
    np.testing.assert_allclose(k.ntk[upper], PEER[name][1], rtol=1e-9)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_sum_over_a_window(mode: str):
    """K of a padded image, entry by entry."""
    layer = Conv(3, 1.3, 0.2, stride=2, padding=1, padding_mode=mode)
    found = layer(kernels.inputs(IMAGES)).nngp
    how: dict[str, Any] = {
        "zeros": "constant",
        "circular": "wrap",
        "reflect": "reflect",
        "replicate": "edge",
    }
    padded = np.pad(IMAGES, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=how[mode])
    patches = []
    for i in range(0, 6, 2):
        for j in range(0, 5, 2):
            patches.append(padded[:, i : i + 3, j : j + 3].reshape(3, -1))
    stacked = np.stack(patches, 1)
    expected = 1.3 * np.einsum("atd,bsd->atbs", stacked, stacked) / stacked.shape[-1] + 0.2
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_windows_that_do_not_count_outside():
    pooled = LocalAveragePool(3, stride=2, padding=1, count_pad=False)(kernels.inputs(IMAGES))
    mean = []
    for i in range(0, 6, 2):
        for j in range(0, 5, 2):
            part = IMAGES[:, max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]
            mean.append(part.mean((1, 2)))
    stacked = np.stack(mean, 1)
    expected = np.einsum("atc,bsc->atbs", stacked, stacked) / 2
    np.testing.assert_allclose(pooled.nngp, expected, rtol=1e-12, atol=1e-12)


def test_sum_and_scale():
    k = SAME(kernels.inputs(IMAGES))
    block = Sequential(RELU, Conv(3, 1.5, padding=1))
    skip = Conv(1, 0.7)
    both = Sum(block, skip)(k)
    np.testing.assert_allclose(both.nngp, block(k).nngp + skip(k).nngp, atol=1e-12)
    np.testing.assert_allclose(both.ntk, block(k).ntk + skip(k).ntk, atol=1e-12)
    np.testing.assert_allclose(Scale(-2.0)(k).ntk, 4 * k.ntk, rtol=1e-12)
    with refuses("needs-dense-layer", argument="branches"):
        Sum(RELU, Sequential(SAME, RELU))


def test_layers_that_need_pixels():
    points = kernels.inputs(np.ones((2, 3)))
    for layer in (SAME, Flatten(), LocalAveragePool(2)):
        with refuses("needs-tokens", argument="kernel"):
            layer(points)
    with refuses("needs-dense-layer", argument="kernel"):
        RELU(Flatten()(SAME(kernels.inputs(IMAGES))))
