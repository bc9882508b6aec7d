"""A plain Transformer with real weights, written for these tests alone: weights in a dictionary,
one function.

z = stem; z = z + branch(norm(z)) for each block; output = head(norm(z)).  x is (sequences, tokens,
features).
"""

import numpy as np
import torch

F64 = torch.float64


def draw(blocks, n, n_in, n_out, tokens, C, mlp=4, seed=0):
    """Weights with the variances of S2 (1.25)-(1.33)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(variance, *shape):
        return (
            variance**0.5 * torch.randn(*shape, generator=generator, dtype=F64)
        ).requires_grad_()

    weights = {"patch": normal(C["patch"] / n_in, n, n_in), "PE": normal(C["PE"], tokens, n)}
    for i, letter in enumerate(blocks):
        if letter in "AC":
            weights |= {f"{g}{i}": normal(C[g] / n, n, n) for g in "QKVU"}
        else:
            weights |= {
                f"W{i}": normal(C["W"] / n, mlp * n, n),
                f"X{i}": normal(C["X"] / (mlp * n), n, mlp * n),
            }
    weights |= {
        "head": normal(C["head"] / n, n_out, n),
        "head_bias": torch.zeros(n_out, dtype=F64, requires_grad=True),
    }
    return weights


def norm(z, eps=1e-5):
    return torch.nn.functional.layer_norm(z, z.shape[-1:], eps=eps)


def attention(s, memory, w, i, heads, seen):
    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

    q, k, v = split(s @ w[f"Q{i}"].T), split(memory @ w[f"K{i}"].T), split(memory @ w[f"V{i}"].T)
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    mixed = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1) @ v
    return mixed.transpose(1, 2).reshape(s.shape) @ w[f"U{i}"].T


def forward(weights, x, blocks, heads, phi, causal=False, memory=None, seen=None):
    """The stream behind the stem and behind each block, and the outputs."""
    z = x @ weights["patch"].T + weights["PE"]
    tokens = x.shape[1]
    own = (
        torch.ones(tokens, tokens, dtype=torch.bool).tril()
        if causal
        else torch.ones(tokens, tokens, dtype=torch.bool)
    )
    own = own if seen is None else own & seen[:, None, None, :]
    streams = [z]
    for i, letter in enumerate(blocks):
        s = norm(z)
        if letter == "A":
            z = z + attention(s, s, weights, i, heads, own)
        elif letter == "C":
            assert memory is not None
            everything = torch.ones(tokens, memory.shape[1], dtype=torch.bool)
            z = z + attention(s, memory, weights, i, heads, everything)
        else:
            z = z + phi(s @ weights[f"W{i}"].T) @ weights[f"X{i}"].T
        streams.append(z)
    return streams, norm(z) @ weights["head"].T + weights["head_bias"]


def gram(z):
    """(points, points), over the last axis."""
    rows = z.detach().reshape(-1, z.shape[-1]).numpy()
    return rows @ rows.T / rows.shape[1]


def tangent(output, weights, rates):
    """Theta of each group for output 0, (points, points)."""
    values = output[..., 0].reshape(-1)
    rows = [
        torch.autograd.grad(value, list(weights.values()), retain_graph=True, allow_unused=True)
        for value in values
    ]
    result = {}
    for k, (name, weight) in enumerate(weights.items()):
        group = name.rstrip("0123456789")
        flat = np.stack(
            [
                (torch.zeros_like(weight) if row[k] is None else row[k]).numpy().ravel()
                for row in rows
            ]
        )
        result[group] = result.get(group, 0) + rates[group] * flat @ flat.T
    return result
