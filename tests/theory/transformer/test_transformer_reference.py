"""Transformers of two tokens against numbers computed independently, and the laws of depth."""

import numpy as np
import pytest

from orderone import theory

G0 = np.array([[1, 0.5], [0.5, 1]])
VIT = {
    "Q": 0.5,
    "K": 0.5,
    "V": 0.5,
    "U": 1 / 3,
    "W": 0.4,
    "X": 1.6,
    "PE": 0.02**2,
}  # S2, Part II, 1.C


def two(matrix):
    assert matrix[0, 1] == matrix[1, 0]
    return [matrix[0, 0], matrix[0, 1], matrix[1, 1]]


@pytest.mark.parametrize(
    ("activation", "blocks", "expected"),
    [
        ("gelu", "AM", [2.434391353079546, 1.488988065151518, 2.434391353079546]),
        ("relu", "AM", [2.509169803218942, 1.5651582902526455, 2.509169803218942]),
        ("relu", "AMA", [3.3474801065305915, 2.3934167387116556, 3.3474801065305915]),
    ],
)
def test_kernels(activation, blocks, expected):
    kernels = theory.Transformer(blocks, activation).kernels(G0)
    assert len(kernels) == 1 + len(blocks)
    np.testing.assert_allclose(kernels[0], G0 + 0.25 * np.eye(2))
    assert two(kernels[-1]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("activation", "blocks", "place", "expected"),
    [
        ("relu", "", 0, [2.0, 0.5, 2.0]),
        ("gelu", "AM", 2, [6.993849083258514, 4.161155768972193, 6.993849083258514]),
        ("gelu", "AMA", 3, [11.261300256810667, 8.282033092961544, 11.261300256810667]),
        ("relu", "AMA", 3, [11.480139489485953, 8.333914847421692, 11.480139489485953]),
        ("relu", "AMAM", 4, [14.194874876916895, 9.922021446396515, 14.194874876916895]),
        ("relu", "AMAM", 5, [5.689384506407382, 4.299842144588165, 5.689384506407382]),
        ("gelu", "AMAM", 5, [5.712881, 4.370006, 5.712881]),
    ],
)
def test_tangent_kernels(activation, blocks, place, expected):
    """Erratum S2.4; place 5 of AMAM is the head."""
    thetas = theory.Transformer(blocks, activation).ntk(G0)
    assert len(thetas) == len(blocks) + 2
    assert two(thetas[place]) == pytest.approx(expected, abs=1e-6)


def test_causal():
    t = theory.Transformer("AMAM", causal=True)
    assert two(t.output_kernel(G0)) == pytest.approx(
        [0.9999975612359872, 0.6472167314792755, 0.9999972806347908]
    )
    assert two(t.ntk(G0)[-1]) == pytest.approx(
        [5.631101633554749, 3.9422226622698715, 5.71017199987726], abs=1e-8
    )


def test_twelve_encoders_of_a_vision_transformer():
    assert theory.Transformer("AM" * 12, C=VIT, eps=1e-6).output_kernel(G0)[0, 1] == pytest.approx(
        0.7400502001070317
    )


def test_two_dozen_encoders():
    t = theory.Transformer("AM" * 24)
    thetas = t.ntk(G0)
    assert t.kernels(G0)[-1][0, 0] == pytest.approx(33.80468295705857, abs=1e-8)
    assert thetas[-2][0, 0] == pytest.approx(286.0933194879506, abs=1e-6)


def test_depth_laws():
    """Erratum S2.6: G grows in proportion to depth, and the tangent kernel of outputs like its
    logarithm."""
    deep = theory.Transformer("AM" * 64)
    thetas = [theory.Transformer("AM" * k).ntk(G0)[-1][0, 0] for k in (1, 2, 4, 8, 16, 32, 64)]
    assert thetas == pytest.approx([4.87, 5.71, 6.83, 8.14, 9.59, 11.10, 12.65], abs=0.006)
    steps = np.diff(thetas)
    assert 1.3 < steps[-1] < 1.6  # a constant for each doubling
    assert abs(steps[-1] - steps[-2]) < 0.06
    kernels = [k[0, 0] for k in deep.kernels(G0)]
    assert (kernels[128] - kernels[64]) / 64 == pytest.approx(0.703, abs=0.01)


def test_sgd_and_adamw_obey_one_recursion():
    """With the factors of S2, which undo the size of gradients that AdamW divides by."""
    t = theory.Transformer("AM")
    np.testing.assert_array_equal(t.ntk(G0, optimizer="adamw"), t.ntk(G0, optimizer="sgd"))


def test_groups_add_up_and_rates_are_linear():
    t = theory.Transformer("AMAM", "erf", C={"Q": 2.0, "U": 0.5})
    found = t.predict(G0)
    for parts, total in zip(found.contributions, t.ntk(G0), strict=True):
        np.testing.assert_allclose(sum(parts.values()), total, rtol=1e-12)
    assert sum(found.shares[-1].values()) == pytest.approx(1)
    double = t.predict(G0, rates={"V": 2.0, "X": 0.0}).contributions[-1]
    np.testing.assert_allclose(double["V"], 2 * found.contributions[-1]["V"])
    assert not double["X"].any()


def test_uniform_rates_are_far_from_order_one():
    """S2, Part II: a uniform rate for AdamW neglects positions by a factor of the width."""
    rates = theory.Transformer(width=768, mlp=4).rates("standard", "adamw")
    assert rates == theory.transformer.relative_rates("standard", "adamw", n=768)
    assert rates["Q"] / rates["PE"] == pytest.approx(768)
    assert rates["W"] / rates["Q"] == pytest.approx(2)
    assert set(theory.transformer.relative_rates("neural-tangent", "sgd").values()) == {1.0}
    mup = theory.transformer.relative_rates("maximal-update", "adamw", n=256)
    assert mup["Q"] == pytest.approx(256)
    assert mup["head"] == pytest.approx(1)


def test_strategies_between_share_their_output_tangent_kernel():
    """A head of variance n^-s and rates n^s below it: the same Theta, while hidden tangent kernels
    grow as n^s."""
    n, tangent = 256, theory.Transformer("AM")
    lazy = tangent.ntk(G0)
    for strategy, s in (("hybrid", 0.5), ("maximal-update", 1.0)):
        for optimizer in ("sgd", "adamw"):
            rates = theory.transformer.relative_rates(strategy, optimizer, n=n)
            found = theory.Transformer("AM", C={"head": n**-s}).ntk(G0, optimizer, rates)
            np.testing.assert_allclose(found[-1], lazy[-1], rtol=1e-12)
            np.testing.assert_allclose(found[-2], n**s * lazy[-2], rtol=1e-12)


def test_tied_terms_are_those_of_wick():
    terms = theory.transformer.tied_terms(8, C_WE=1.3, C_W=0.7)
    assert terms == pytest.approx((2.873, 13.667875, 1.837875, 1.41375))
    rng, n, draws, words = np.random.default_rng(0), 8, 200_000, 3
    W = 1.3**0.5 * rng.standard_normal((draws, n, words))
    V = (0.7 / n) ** 0.5 * rng.standard_normal((draws, n, n)) + np.eye(n)
    z = np.swapaxes(W, 1, 2) @ (V @ W) / n**0.5  # output i, word w
    assert np.mean(z[:, 0, 1] ** 2) == pytest.approx(terms.diagonal, rel=0.02)
    assert np.mean(z[:, 0, 0] * z[:, 1, 1]) == pytest.approx(terms.contact, rel=0.02)
    assert np.mean(z[:, 0, 1] * z[:, 1, 0]) == pytest.approx(terms.swap, rel=0.03)
