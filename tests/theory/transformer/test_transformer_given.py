"""Inputs of users: equivalent shapes, array libraries, and errors about invalid ones."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone import theory
from orderone.theory import kernels, transformer
from orderone.theory.transformer import Attention, patches, words

G0 = np.array([[1, 0.5], [0.5, 1]])
MODEL = theory.Transformer("AM")


def test_three_ways_to_give_several_sequences():
    X = np.random.default_rng(0).standard_normal((2, 3, 5))
    G = patches(X)
    assert G.shape == (2, 3, 2, 3)
    np.testing.assert_allclose(G[1, 2, 0, 1], X[1, 2] @ X[0, 1] / 5)
    four, flat = MODEL.kernels(G)[-1], MODEL.kernels(G.reshape(6, 6), tokens=3)[-1]
    np.testing.assert_array_equal(four.reshape(6, 6), flat)
    np.testing.assert_allclose(four[0, :, 0], MODEL.kernels(patches(X[0]))[-1], atol=1e-9)


def test_results_have_the_library_and_precision_of_the_input():
    tensor = MODEL.ntk(torch.tensor(G0, dtype=torch.float32))[-1]
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor, MODEL.ntk(G0)[-1], rtol=1e-6)
    ids = torch.tensor([[1, 2], [2, 2]])
    assert isinstance(words(ids), torch.Tensor)


def test_words():
    G = words([[1, 2], [2, 2]])
    np.testing.assert_array_equal(
        G.reshape(4, 4), [[1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    )
    t = theory.Transformer("", stem="language", C={"WE": 0.3, "PE": 0.7})
    stem = t.kernels(G)[0].reshape(
        4, 4
    )  # words 2 at places 1, 0 and 1: positions are shared by sequences
    np.testing.assert_allclose(stem[1], [0, 1.0, 0.3, 1.0])


def test_pooling_and_class_token():
    G = patches(np.random.default_rng(1).standard_normal((2, 3, 6)))
    plain = theory.Transformer("AM").output_kernel(G)
    np.testing.assert_allclose(
        theory.Transformer("AM", pool="mean").output_kernel(G), plain.mean(axis=(1, 3))
    )
    t = theory.Transformer("AM", pool="class", C={"class": 0.8, "PE": 0.1})
    stem = t.kernels(G)[0]
    assert stem.shape == (2, 4, 2, 4)
    np.testing.assert_allclose(stem[0, 0, :, :], [[0.9, 0, 0, 0]] * 2, atol=1e-15)
    assert t.output_kernel(G).shape == (2, 2)
    assert "class" in t.predict(G).shares[-1]


def test_a_tied_head_has_the_variance_of_words():
    G = words([[0, 1], [1, 1]])
    tied = theory.Transformer("AM", stem="language", head="tied", C={"WE": 0.6})
    free = theory.Transformer("AM", stem="language", C={"WE": 0.6, "head": 0.6})
    np.testing.assert_allclose(tied.output_kernel(G), free.output_kernel(G))
    np.testing.assert_allclose(tied.ntk(G)[-1], free.ntk(G, rates={"head_bias": 0})[-1])


def test_norms_are_one_for_a_stream_of_mean_zero():
    np.testing.assert_array_equal(theory.Transformer(norm="rms").kernels(G0), MODEL.kernels(G0))
    found = MODEL.predict(G0)
    np.testing.assert_allclose(found.normalized[-1], found.output)  # C_head = 1
    inside = theory.Transformer("", eps=0.5, C={"PE": 0}).output_kernel(G0)  # erratum S2.1
    np.testing.assert_allclose(inside, G0 / 1.5)


def test_layers_of_kernels_equal_the_transformer():
    branch = [kernels.Residual(kernels.LayerNorm(1e-5), Attention(Q=2.0, V=0.5))]
    branch += [
        kernels.Residual(
            kernels.LayerNorm(1e-5), kernels.Dense(1.5), kernels.Activation("relu"), kernels.Dense()
        )
    ]
    net = kernels.Sequential(*branch * 2, kernels.LayerNorm(1e-5), kernels.Dense())
    found = net(kernels.covariance(G0.reshape(1, 2, 1, 2), ntk=G0.reshape(1, 2, 1, 2)))
    t = theory.Transformer("AMAM", "relu", C={"Q": 2.0, "V": 0.5, "W": 1.5, "PE": 0})
    np.testing.assert_allclose(found.nngp.reshape(2, 2), t.output_kernel(G0), rtol=1e-9)
    rates = {
        "Q": 2.0,
        "V": 0.5,
        "W": 1.5,
        "PE": 0,
        "head_bias": 0,
    }  # rates of C_G: what trained normals amount to
    np.testing.assert_allclose(found.ntk.reshape(2, 2), t.ntk(G0, rates=rates)[-1], rtol=1e-9)
    with refuses("needs-tokens", argument="kernel"):
        Attention()(kernels.covariance(G0))


def test_few_heads_fluctuate_more_with_every_block():
    """Erratum S2.5: drawn chains against the variance of a single head."""
    settings = {"C": {"Q": 3.0, "K": 3.0, "PE": 0}, "blocks": "AA"}
    opposite = np.array([[1, -0.8], [-0.8, 1]])
    exact = theory.Transformer(**settings).predict(opposite)
    few, many = (
        theory.Transformer(**settings, heads=h).few_heads(opposite, samples=600) for h in (2, 18)
    )
    assert np.all(np.abs(few.mean[1] - exact.kernels[1]) < 4 * few.error[1])
    assert few.std[1][0, 1] == pytest.approx(0.491 / 2**0.5, rel=0.1)
    assert few.std[1][0, 1] == pytest.approx(exact.head_std(2)[1][0, 1], rel=0.1)
    assert few.std[2][0, 1] == pytest.approx(3 * many.std[2][0, 1], rel=0.15)
    assert (
        few.std[2][0, 1] > 1.1 * exact.head_std(2)[2][0, 1]
    )  # the second block amplifies what the first one did


@pytest.mark.parametrize(
    ("wrong", "code", "argument", "words"),
    [
        (
            lambda: theory.Transformer("AMB"),
            "invalid-argument",
            "blocks",
            "'AMB'",
        ),
        (lambda: theory.Transformer(cast(Any, 3)), "invalid-argument", "blocks", "word"),
        (
            lambda: theory.Transformer(width=768, heads=11),
            "invalid-argument",
            "heads",
            "width 768",
        ),
        (lambda: theory.Transformer(C={"Z": 1}), "unknown-name", "C", "'Z'"),
        (
            lambda: theory.Transformer(C={"Q": -1}),
            "invalid-argument",
            "C['Q']",
            "least 0",
        ),
        (lambda: theory.Transformer(C=[1, 2]), "invalid-argument", "C", ""),  # pyright: ignore[reportArgumentType]
        (lambda: theory.Transformer(eps=-1), "invalid-argument", "eps", ""),
        (
            lambda: theory.Transformer(causal="yes"),  # pyright: ignore[reportArgumentType]
            "wrong-type",
            "causal",
            "'yes'",
        ),
        (lambda: theory.Transformer(norm="batch"), "unknown-name", "norm", ""),
        (lambda: theory.Transformer(activation="gelo"), "unknown-name", "activation", ""),
        (lambda: theory.Transformer(head="tied"), "invalid-argument", "head", "'linear'"),
        (
            lambda: MODEL.kernels([[1, 2], [2, 1]]),
            "not-a-covariance",
            "G0",
            "positive semidefinite",
        ),
        (lambda: MODEL.kernels([[1, 0.5], [0.4, 1]]), "not-a-covariance", "G0", "symmetric matrix"),
        (lambda: MODEL.kernels([1, 2]), "invalid-argument", "G0", "shape"),
        (lambda: MODEL.kernels([[np.nan]]), "invalid-argument", "G0", "finite numbers"),
        (
            lambda: MODEL.kernels(np.eye(6), tokens=4),
            "invalid-argument",
            "tokens",
            "of 6",
        ),
        (
            lambda: MODEL.kernels(G0, mask=np.zeros(2, bool)),
            "invalid-argument",
            "mask",
            "at least",
        ),
        (lambda: MODEL.kernels(G0, mask=np.ones(3, bool)), "invalid-argument", "mask", "booleans"),
        (lambda: MODEL.kernels(G0, mask=[1, 0]), "invalid-argument", "mask", "booleans"),
        (lambda: MODEL.ntk(G0, "muon"), "unknown-name", "optimizer", "unknown optimizer"),
        (lambda: MODEL.ntk(G0, rates={"QQ": 1}), "unknown-name", "rates", ""),
        (
            lambda: theory.Transformer("AC").kernels(G0),
            "invalid-argument",
            "memory",
            "blocks C",
        ),
        (lambda: theory.Transformer("C").kernels(G0, memory=G0), "wrong-type", "memory", ""),  # pyright: ignore[reportArgumentType]
        (
            lambda: theory.Transformer("C").kernels(np.eye(4), tokens=2, memory=MODEL.memory(G0)),
            "invalid-argument",
            "memory",
            "2 seq",
        ),
        (
            lambda: theory.Transformer(eps=0, C={"PE": 0}).kernels(np.zeros((2, 2))),
            "zero-variance",
            "G0",
            "",
        ),
        (lambda: MODEL.rates("standard"), "invalid-argument", "width", ""),
        (lambda: MODEL.few_heads(G0), "invalid-argument", "heads", "of heads"),
        (lambda: patches(np.zeros(3)), "invalid-argument", "X", ""),
        (lambda: MODEL.ntk(1j * G0), "invalid-argument", "G0", "array"),
        (
            lambda: MODEL.ntk(G0, mask=[[True], [True, False]]),
            "invalid-argument",
            "mask",
            "booleans",
        ),
        (
            lambda: MODEL.ntk(G0, memory=MODEL.memory(G0)),
            "invalid-argument",
            "memory",
            "blocks C",
        ),
        (lambda: theory.Transformer("C").memory(G0), "invalid-argument", "blocks", "encoder"),
        (lambda: MODEL.predict(G0).head_std(0), "invalid-argument", "heads", "a whole"),
        (
            lambda: theory.lr_factors("standard", optimizer="lion"),
            "unknown-name",
            "optimizer",
            "unknown optimizer",
        ),
        (lambda: words([0.5]), "invalid-argument", "ids", ""),
        (lambda: transformer.relative_rates("mup"), "unknown-name", "strategy", ""),
        (lambda: theory.lr_factors("hybrid", mlp=0), "invalid-argument", "mlp", "at least"),
    ],
)
def test_invalid_arguments_are_named(wrong, code, argument, words):
    with refuses(code, argument=argument) as caught:
        wrong()
    assert words in str(caught.value)


def test_half_precision_stays_half():
    half = MODEL.ntk(G0.astype(np.float16))[-1]
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, MODEL.ntk(G0)[-1], rtol=2e-3)


def test_shares_without_rates_are_zero():
    still = theory.Transformer("").predict(G0, rates=dict.fromkeys(transformer.GROUPS, 0))
    assert set(still.shares[-1].values()) == {0.0}


def test_tokens_without_variance_attend_evenly():
    G = np.diag([1.0, 0.0])
    found = theory.Transformer("AM", C={"PE": 0}).kernels(G)
    assert np.all(np.isfinite(found))
    assert found[1][1, 1] == pytest.approx(0.25, abs=1e-5)  # scores are 0: the mean over both keys


@given(
    st.integers(1, 4),
    st.floats(-1, 1),
    st.floats(0, 1e6),
    st.sampled_from(["relu", "gelu", "erf"]),
    st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_kernel_gives_finite_symmetric_kernels(tokens, correlation, size, activation, causal):
    shared = max(correlation, -1 / tokens)
    G = size * ((1 - shared) * np.eye(tokens) + shared)
    t = theory.Transformer("MAM", activation, causal=causal, accuracy=1e-2)
    for matrix in (*t.kernels(G), *t.ntk(G)):
        assert np.all(np.isfinite(matrix))
        np.testing.assert_array_equal(matrix, matrix.T)


@pytest.mark.parametrize("blocks", ["A", "AMAM"])
@pytest.mark.parametrize("distance", [1e-6, 1e-7, 1e-8])
def test_nearly_collinear_tokens(blocks, distance):
    """Rounding gave three keys more directions than there are."""
    rng = np.random.default_rng(0)
    C = {"PE": 0.0, "Q": 0.3072, "K": 0.3072}
    model = theory.Transformer(blocks, C=C)
    equal = np.ones((3, 16))
    for _ in range(8):
        X = equal + distance * rng.standard_normal((3, 16))
        near, limit = (model.ntk(each @ each.T / 16)[-1] for each in (X, equal))
        np.testing.assert_allclose(near, limit, rtol=20 * distance + 1e-9)


def test_sharp_attention_says_how_inaccurate_it_is():
    """The real error of Theta is within the bound, against heads drawn one by one."""
    rng = np.random.default_rng(6)
    X = rng.standard_normal((6, 8))
    G0 = X @ X.T / 8
    with pytest.warns(UserWarning, match="sharp-attention"):
        prediction = theory.Transformer("A", C={"Q": 300.0, "K": 300.0}).predict(G0)
    # smallest and largest diagonal entry, from three million heads with scores L Z L^T
    expected = [400.0, 513.2]
    theta = prediction.ntk[1]
    bound = prediction.theta_errors[0] * theta.max()
    assert theta.diagonal().min() > 0
    assert abs(theta.diagonal().min() - expected[0]) < bound
    assert abs(theta.diagonal().max() - expected[1]) < bound


@pytest.mark.parametrize("constant", [1e4, 1e6, 1e9])
def test_a_tangent_kernel_that_cannot_be_sampled_is_refused(constant):
    G0 = np.eye(6)
    model = theory.Transformer("A", C={"Q": constant, "K": constant})
    assert np.isfinite(model.kernels(G0)[-1]).all()
    with refuses("sharp-attention", argument="C"):
        model.ntk(G0)
    two_tokens = theory.Transformer("A", C={"Q": 10.0, "K": 10.0}).predict(np.eye(2))
    assert two_tokens.theta_errors == [0.0]


NOT_SQUARE_INTEGRABLE = [lambda x: 1 / x, lambda x: np.abs(x) ** -0.5, lambda x: np.exp(x * x)]


@pytest.mark.parametrize("activation", NOT_SQUARE_INTEGRABLE)
@pytest.mark.parametrize("settings", [{}, {"placement": "post"}])
@pytest.mark.parametrize("blocks", ["M", "G", "AMAM"])
def test_activations_of_infinite_variance_are_refused(activation, settings, blocks):
    model = theory.Transformer(blocks, activation, accuracy=1e-2, **settings)
    with refuses("infinite-kernel", argument="activation"):
        model.predict(np.eye(2))
    with refuses("infinite-kernel", argument="activation"):
        theory.Transformer("C").kernels(np.eye(2), memory=model.memory(np.eye(2)))


def test_few_heads_with_an_infinite_variance_are_refused():
    model = theory.Transformer("AM", lambda x: 1 / x, heads=2, accuracy=1e-2)
    with refuses("infinite-kernel", argument="activation"):
        model.few_heads(np.eye(2), samples=4)


def test_infinite_tangent_kernels_of_jumps_are_returned():
    prediction = theory.Transformer("M", np.sign).predict(np.array([[1.0, 0.3], [0.3, 1.0]]))
    assert np.isfinite(prediction.output).all()
    assert np.isinf(prediction.ntk[-1].diagonal()).all()
    assert np.isfinite(prediction.ntk[-1][0, 1])


@pytest.mark.parametrize("settings", [{}, {"rope": 100.0}, {"attention": "shaped"}])
def test_infinite_tangent_kernels_do_not_pass_through_attention(settings):
    model = theory.Transformer("MA", np.sign, accuracy=1e-2, **settings)
    assert np.isfinite(model.output_kernel(np.eye(2))).all()
    with refuses("infinite-kernel", argument="activation"):
        model.ntk(np.eye(2))
    without = theory.Transformer("M", np.sign).predict(
        np.eye(2), rates={"W": 0, "patch": 0, "PE": 0}
    )
    assert np.isfinite(without.ntk[-1]).all()
