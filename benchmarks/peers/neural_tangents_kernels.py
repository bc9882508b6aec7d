"""The peer of benchmarks/kernels.py; run it with the Python that has neural-tangents.

Its argument is "float32" or "float64". It reads one case per line (activation, weight_var,
bias_var, depth, points, features), runs it once, and answers with a line of JSON: CPU seconds, and
the first time the diagonal of the NTK.
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


def compiled(activation: str, weight_var: float, bias_var: float, depth: int, features: int):
    phi = {"relu": stax.Relu, "erf": stax.Erf}[activation]()
    dense = stax.Dense(features, W_std=weight_var**0.5, b_std=bias_var**0.5 or None)
    *_, kernel = stax.serial(stax.repeat(stax.serial(dense, phi), depth), dense)
    return jax.jit(lambda x: kernel(x, None, ("nngp", "ntk")))


def main() -> None:
    known = {}
    for line in sys.stdin:
        activation, weight_var, bias_var, depth, points, features = json.loads(line)
        first = line not in known
        if first:
            x = np.random.default_rng(0).normal(size=(points, features)).astype(sys.argv[1])
            known[line] = compiled(activation, weight_var, bias_var, depth, features), x
            known[line][0](x).ntk.block_until_ready()
        run, x = known[line]
        start = time.process_time()
        found = run(x)
        found.ntk.block_until_ready()
        found.nngp.block_until_ready()
        took = time.process_time() - start
        diagonal = np.diagonal(found.ntk).astype(float).tolist() if first else []
        print(json.dumps([took, diagonal]), flush=True)


if __name__ == "__main__":
    main()
