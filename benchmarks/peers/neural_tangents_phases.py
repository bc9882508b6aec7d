"""The peer of benchmarks/meanfield.py; run it with the Python that has neural-tangents.

neural-tangents does not compute fixed points, so its kernel of one tanh layer is iterated on two
inputs, for all networks at once under jit: q* and c*, and chi_1 as the derivative of c' by c at
c = 1, by automatic differentiation. It reads a line (weight_var, bias_var, layers), and answers
with a line of JSON: CPU seconds, q*, c*, chi_1.
"""

import json
import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # pyright: ignore[reportMissingImports]
import numpy as np

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]
from neural_tangents import stax  # noqa: E402  # pyright: ignore[reportMissingImports]

DEGREE = 25  # of its Gauss-Hermite quadrature: the default


def diagram(weight_var, bias_var, layers: int):
    *_, tanh = stax.ElementwiseNumerical(jnp.tanh, deg=DEGREE)
    template = stax.Dense(1)[2](jnp.ones((2, 1)), None)  # a Kernel to write covariances into

    def layer(q, c, w, b):
        covariance = q * jnp.array([[1.0, c], [c, 1.0]])
        out = tanh(
            template.replace(nngp=covariance, ntk=None, cov1=jnp.diagonal(covariance), cov2=None)
        ).nngp
        return w * out[0, 0] + b, w * out[0, 1] + b

    def step(_, state):
        q, c, w, b = state
        q, q_ab = layer(q, c, w, b)
        return q, q_ab / q, w, b

    def one(w, b):
        q, c, *_ = jax.lax.fori_loop(0, layers, step, (1.0, 0.5, w, b))
        chi1 = jax.grad(lambda c: layer(q, c, w, b)[1] / q)(1.0)
        return q, c, chi1

    return jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(weight_var, bias_var)


def main() -> None:
    for line in sys.stdin:
        weight_var, bias_var, layers = json.loads(line)
        axes = jnp.array(weight_var), jnp.array(bias_var)
        run = jax.jit(lambda w, b, layers=layers: diagram(w, b, layers))
        jax.block_until_ready(run(*axes))
        start = time.process_time()
        found = jax.block_until_ready(run(*axes))
        took = time.process_time() - start
        print(json.dumps([took, *(np.asarray(x).tolist() for x in found)]), flush=True)


if __name__ == "__main__":
    main()
