"""The peer of benchmarks/empirical_ntk.py; run it with the Python that has neural-tangents.

    python benchmarks/peers/neural_tangents_empirical.py resnet | gpt2  1 | 2 | 3

The same models as functions of JAX. The last argument is the implementation of
`neural_tangents.empirical_ntk_fn`: Jacobian contraction, NTK-vector products, structured
derivatives. It prints CPU seconds, the best of three calls after the one that compiles, and three
kinds of memory, as benchmarks/empirical_ntk.py explains.
"""

import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import neural_tangents as nt  # pyright: ignore[reportMissingImports]
import numpy as np
from memory import Mark

RNG = np.random.default_rng(0)


def drawn(*shape: int, fan_in: int):
    return jnp.asarray(RNG.normal(size=shape) / fan_in**0.5, "float32")


def conv(x, w, stride: int):
    pad = w.shape[-1] // 2
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad), (pad, pad)], dimension_numbers=("NCHW", "OIHW", "NCHW")
    )


def norm(x, p):
    return x * p["gain"][None, :, None, None] + p["shift"][None, :, None, None]


def gains(n: int):
    return {"gain": jnp.ones(n), "shift": jnp.zeros(n)}


def kernel(inputs: int, outputs: int, size: int):
    return drawn(outputs, inputs, size, size, fan_in=inputs * size**2)


def resnet():
    blocks = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
    params = {"stem": kernel(3, 16, 3), "norm": gains(16), "blocks": []}
    for inputs, outputs, stride in blocks:
        block = {"a": kernel(inputs, outputs, 3), "b": kernel(outputs, outputs, 3)}
        block |= {"na": gains(outputs), "nb": gains(outputs)}
        if stride > 1:
            block["skip"] = kernel(inputs, outputs, 1)
        params["blocks"].append(block)
    params["w"] = drawn(64, 10, fan_in=64)
    params["b"] = jnp.zeros(10)

    def apply(p, x, **_):
        h = jax.nn.relu(norm(conv(x, p["stem"], 1), p["norm"]))
        for block, (_, _, stride) in zip(p["blocks"], blocks, strict=True):
            inner = jax.nn.relu(norm(conv(h, block["a"], stride), block["na"]))
            skip = conv(h, block["skip"], stride) if stride > 1 else h
            h = jax.nn.relu(norm(conv(inner, block["b"], 1), block["nb"]) + skip)
        return h.mean((2, 3)) @ p["w"] + p["b"]

    return apply, params, jnp.asarray(RNG.normal(size=(64, 3, 32, 32)), "float32")


def layer_norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["gain"] + p["shift"]


def linear(inputs: int, outputs: int):
    return {"w": 0.02 * drawn(inputs, outputs, fan_in=1), "b": jnp.zeros(outputs)}


def gpt2():
    n, heads, layers, vocab, tokens = 256, 4, 6, 5000, 32
    params = {"words": 0.02 * drawn(vocab, n, fan_in=1), "places": 0.02 * drawn(64, n, fan_in=1)}
    params["blocks"] = []
    for _ in range(layers):
        block = {"n1": gains(n), "n2": gains(n), "qkv": linear(n, 3 * n), "out": linear(n, n)}
        params["blocks"].append(block | {"up": linear(n, 4 * n), "down": linear(4 * n, n)})
    params["last"] = gains(n)
    mask = jnp.tril(jnp.ones((tokens, tokens), bool))

    def apply(p, ids, **_):
        h = p["words"][ids] + p["places"][:tokens]
        for block in p["blocks"]:
            x = layer_norm(h, block["n1"]) @ block["qkv"]["w"] + block["qkv"]["b"]
            q, k, v = jnp.split(x.reshape(*ids.shape, 3 * heads, n // heads), 3, axis=2)
            scores = jnp.einsum("bthd,bshd->bhts", q, k) / (n // heads) ** 0.5
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
            y = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(*ids.shape, n)
            h = h + y @ block["out"]["w"] + block["out"]["b"]
            x = layer_norm(h, block["n2"]) @ block["up"]["w"] + block["up"]["b"]
            h = h + jax.nn.gelu(x) @ block["down"]["w"] + block["down"]["b"]
        return layer_norm(h, p["last"])[:, -1] @ p["words"][:4].T

    return apply, params, jnp.asarray(RNG.integers(0, vocab, (8, tokens)))


def main() -> None:
    apply, params, x = {"resnet": resnet, "gpt2": gpt2}[sys.argv[1]]()
    jax.block_until_ready((x, params))
    mark = Mark()
    ntk = nt.empirical_ntk_fn(apply, trace_axes=(-1,), vmap_axes=0, implementation=int(sys.argv[2]))
    run = jax.jit(lambda x, p: ntk(x, None, p))
    run(x, params).block_until_ready()
    first = mark.growth()
    mark.forget()
    times = []
    for _ in range(3):
        start = time.process_time()
        run(x, params).block_until_ready()
        times.append(time.process_time() - start)
    memory = f"{first:.0f} | {mark.growth():.0f} | {mark.peak():.0f}"
    print(f"{min(times):.2f} | {memory}", flush=True)


if __name__ == "__main__":
    main()
