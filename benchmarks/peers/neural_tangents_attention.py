"""The peer of benchmarks/transformer.py; run it with the Python that has neural-tangents.

Attention (A) and MLP (M) blocks, residual and with layer norms. Attention is what neural-tangents
has: queries tied to keys, and scores over the number of channels. Its argument is "float32" or
"float64". It reads a line (blocks, sequences, tokens, features), runs once, and answers with a line
of JSON: CPU seconds, and the mean of the kernel.
"""

import json
import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # pyright: ignore[reportMissingImports]
import numpy as np

jax.config.update("jax_enable_x64", sys.argv[1] == "float64")

from neural_tangents import stax  # noqa: E402  # pyright: ignore[reportMissingImports]


def block(*branch: object):
    inside = stax.serial(stax.LayerNorm(axis=-1), *branch)
    return stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), inside), stax.FanInSum())


def compiled(blocks: str, features: int):
    attention = block(
        stax.GlobalSelfAttention(features, features, features, 1, linear_scaling=True)
    )
    mlp = block(stax.Dense(features), stax.Gelu(), stax.Dense(features))
    *_, kernel = stax.serial(
        stax.Dense(features), *({"A": attention, "M": mlp}[letter] for letter in blocks)
    )
    return jax.jit(lambda x: kernel(x, None, "nngp"))


def main() -> None:
    known = {}
    for line in sys.stdin:
        blocks, sequences, tokens, features = json.loads(line)
        if line not in known:
            x = (
                np.random.default_rng(0)
                .normal(size=(sequences, tokens, features))
                .astype(sys.argv[1])
            )
            known[line] = compiled(blocks, features), x
            known[line][0](x).block_until_ready()
        run, x = known[line]
        start = time.process_time()
        found = run(x).block_until_ready()
        print(json.dumps([time.process_time() - start, float(found.mean())]), flush=True)


if __name__ == "__main__":
    main()
