"""Theory against Transformers with real weights: kernels block by block, tangent kernels group by
group."""

import numpy as np
import pytest
import torch
from support.plain_transformer import draw, forward, gram, norm, tangent

from orderone import theory

C = theory.Transformer().C
OTHER = {
    "patch": 0.7,
    "PE": 0.4,
    "Q": 2.0,
    "K": 1.5,
    "V": 1.3,
    "U": 0.6,
    "W": 1.7,
    "X": 0.8,
    "head": 1.2,
}
GELU, RELU = torch.nn.functional.gelu, torch.nn.functional.relu


def inputs(sequences, tokens, features=16, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sequences, tokens, features)) + 0.6 * rng.standard_normal(features)
    return X, theory.transformer.patches(X).reshape(sequences * tokens, sequences * tokens)


def sgd(n, n_in=16, n_out=8):
    """Factors by hand: S2 (1.99)-(1.107)."""
    return {
        "patch": 1 / n_in,
        "PE": 1,
        **dict.fromkeys("QKVUW", 1 / n),
        "X": 1 / (4 * n),
        "head": 1 / n,
        "head_bias": 1,
    }


def close(samples, expected, slack):
    """Within four standard errors, and `slack` for what is of order 1/n and 1/H."""
    mean, error = np.mean(samples, axis=0), np.std(samples, axis=0, ddof=1) / len(samples) ** 0.5
    return np.all(np.abs(mean - expected) <= 4 * error + slack * np.abs(expected).max())


@pytest.mark.parametrize(
    ("blocks", "phi", "causal", "constants"),
    [("AMAM", "gelu", False, {}), ("AMA", "relu", True, OTHER), ("MAM", "gelu", True, OTHER)],
)
def test_kernels_block_by_block(blocks, phi, causal, constants):
    x, G0 = inputs(2, 4)
    t = theory.Transformer(blocks, phi, C=constants, causal=causal)
    kernels, output = t.kernels(G0, tokens=4), t.output_kernel(G0, tokens=4)
    functions = {"gelu": GELU, "relu": RELU}
    with torch.no_grad():
        runs = [
            forward(
                draw(blocks, 256, 16, 256, 4, t.C, seed=seed),
                torch.tensor(x),
                blocks,
                32,
                functions[phi],
                causal,
            )
            for seed in range(24)
        ]
    for k, kernel in enumerate(kernels):
        assert close([gram(streams[k]) for streams, _ in runs], kernel, slack=0.01), k
        normalized = kernel / np.sqrt(np.outer(kernel.diagonal(), kernel.diagonal()))
        assert close([gram(norm(streams[k])) for streams, _ in runs], normalized, slack=0.02), k
    assert close([gram(out) for _, out in runs], output, slack=0.02)


@pytest.mark.slow
def test_networks_come_closer_as_they_get_wider():
    """Deviations of G, F and outputs from the theory fall like n^-1/2 over widths 64 to 1024."""
    x, G0 = inputs(1, 3)
    t = theory.Transformer("AM")
    expected, widths = [*t.kernels(G0), t.output_kernel(G0)], (64, 256, 1024)
    deviations = []
    for n in widths:
        squares = []
        for seed in range(24):
            with torch.no_grad():
                streams, out = forward(
                    draw("AM", n, 16, n, 3, t.C, seed=seed), torch.tensor(x), "AM", n // 8, GELU
                )
            squares.append(
                [
                    np.mean((gram(z) - G) ** 2)
                    for z, G in zip([*streams, out], expected, strict=True)
                ]
            )
        deviations.append(np.sqrt(np.mean(squares, axis=0)))
    slopes = np.polyfit(np.log(widths), np.log(deviations), 1)[0]
    np.testing.assert_allclose(slopes, -0.5, atol=0.12)


def test_padding_is_ignored():
    x, G0 = inputs(2, 3)
    seen = np.array([[True, True, False], [True, True, True]])
    t = theory.Transformer("A")
    expected = t.kernels(G0, tokens=3, mask=seen)[-1]
    assert np.abs(expected - t.kernels(G0, tokens=3)[-1]).max() > 0.02
    runs = []
    with torch.no_grad():
        for seed in range(30):
            weights = draw("A", 256, 16, 4, 3, t.C, seed=seed)
            runs.append(
                gram(
                    forward(weights, torch.tensor(x), "A", 32, GELU, seen=torch.tensor(seen))[0][-1]
                )
            )
    assert close(runs, expected, slack=0.01)


@pytest.mark.parametrize(
    ("blocks", "causal", "constants", "sequences", "tokens"),
    [
        ("AMAM", False, {}, 1, 2),
        ("AM", True, OTHER, 1, 2),
        ("MA", False, OTHER, 2, 2),
        ("AM", True, OTHER, 1, 5),
    ],
)
def test_tangent_kernels_group_by_group(blocks, causal, constants, sequences, tokens):
    """Erratum S2.4: with the terms of Q and K, which are of order one."""
    n = 128
    x, G0 = inputs(sequences, tokens)
    t = theory.Transformer(blocks, C=constants, causal=causal)
    expected = t.predict(G0, tokens=tokens).contributions[-1]
    found = []
    for seed in range(30):
        weights = draw(blocks, n, 16, 8, tokens, t.C, seed=seed)
        found.append(
            tangent(forward(weights, torch.tensor(x), blocks, 16, GELU, causal)[1], weights, sgd(n))
        )
    for group, kernel in expected.items():
        assert close([each[group] for each in found], kernel, slack=0.06), group
    total = sum(expected.values())
    assert close([sum(each.values()) for each in found], total, slack=0.03)
    assert not close(
        [each["Q"] for each in found], 0 * total, slack=0
    )  # a term that must not be dropped


def test_a_decoder_that_attends_to_an_encoder():
    n, heads = 128, 16
    (x, G0), (y, H0) = inputs(1, 3), inputs(1, 2, seed=1)
    encoder, decoder = (
        theory.Transformer("AM", C=OTHER),
        theory.Transformer("ACM", C=OTHER, causal=True),
    )
    prediction = decoder.predict(H0, memory=encoder.memory(G0))
    kernels, thetas = [], []
    for seed in range(40):
        below = draw("AM", n, 16, 4, 3, encoder.C, seed=seed)
        above = draw("ACM", n, 16, n, 2, decoder.C, seed=1000 + seed)
        memory = norm(forward(below, torch.tensor(x), "AM", heads, GELU)[0][-1])
        streams, out = forward(above, torch.tensor(y), "ACM", heads, GELU, True, memory)
        del below["head"], below["head_bias"]
        both = [tangent(out, weights, sgd(n)) for weights in (below, above)]
        thetas.append(sum(both[0].values()) + sum(both[1].values()))
        kernels.append(gram(streams[-1]))
    assert close(kernels, prediction.kernels[-1], slack=0.02)
    assert close(thetas, prediction.ntk[-1], slack=0.04)


def test_every_group_moves_the_outputs_alike_at_every_width():
    """lambda_G |dz/dG|^2 is flat in the width: S2 (1.99)-(1.107), and (1.108)-(1.116) after a
    division by |g|."""
    widths, blocks, seeds = (32, 64, 128, 256), "AM", 40
    x, _ = inputs(1, 2)
    sizes = {"sgd": {}, "adamw": {}}
    for n in widths:
        factors = theory.lr_factors("neural-tangent", "adamw", n=n, n_in=16, n_out=8)
        factors |= dict.fromkeys("QKVU", factors["QKVU"])
        found, count = [], {}
        for seed in range(seeds):
            weights = draw(blocks, n, 16, 8, 2, C, seed=seed)
            count = {name.rstrip("0123456789"): w.numel() for name, w in weights.items()}
            squares = tangent(
                forward(weights, torch.tensor(x), blocks, n // 8, GELU)[1],
                weights,
                dict.fromkeys(sgd(n), 1),
            )
            found.append({group: kernel[0, 0] for group, kernel in squares.items()})
        for group, rate in sgd(n).items():
            square = np.mean([each[group] for each in found])
            sizes["sgd"].setdefault(group, []).append(rate * square)
            sizes["adamw"].setdefault(group, []).append(
                factors[group] * square / (square / count[group]) ** 0.5
            )
    for groups in sizes.values():
        for group, values in groups.items():
            slope = np.polyfit(np.log(widths), np.log(values), 1)[0]
            assert abs(slope) <= 0.1, (group, slope)
    uniform = np.polyfit(np.log(widths), np.log(np.array(sizes["sgd"]["Q"]) * widths), 1)[0]
    assert uniform > 0.8  # what must fail: one rate for all


def test_few_heads_fluctuate_at_any_width():
    """Erratum S2.5."""
    across = np.random.default_rng(3).standard_normal((2, 16))
    x = np.stack([across[0], -0.95 * across[0] + 0.2 * across[1]])[None]
    G0 = theory.transformer.patches(x[0])
    t = theory.Transformer("A", C={"Q": 3.0, "K": 3.0, "PE": 0.0}, heads=1)
    predicted = t.predict(G0).head_std(1)[-1][0, 1]
    fluctuations = []
    with torch.no_grad():
        for seed in range(200):
            stem, after = forward(
                draw("A", 256, 16, 1, 2, t.C, seed=seed), torch.tensor(x), "A", 1, GELU
            )[0]
            fluctuations.append(gram(after)[0, 1] - gram(stem)[0, 1])
    assert np.std(fluctuations) == pytest.approx(predicted, rel=0.2)
    assert predicted > 3 * t.predict(G0).head_std(16)[-1][0, 1]
