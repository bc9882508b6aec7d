"""Outputs of a network with a constant tangent kernel, trained on squares: exact for all times.

    dw/dt = -s r,   r = f - y = r_0 + Theta w                  gradient flow; f = f_0 + Theta w
    w     = -(1 - exp(-s Theta t)) / Theta r_0

    v <- mu v + s r,   w <- w - lr v                           gradient descent with momentum

w are the coefficients of the kernel; those of the outputs at test inputs follow with Theta between
test and train: f = f_0 + Theta_test w. In the basis of the eigenvectors of Theta every eigenvalue
moves alone, and a power of a matrix of size 3 gives any number of steps at once. s is the factor of
the loss: 1 for half the sum of squares, 2 / (number of entries) for `torch.nn.functional.mse_loss`.

Lee et al. 2019, "Wide Neural Networks of Any Depth Evolve as Linear Models Under Gradient Descent",
(10)-(11) and (14)-(16).
"""

from collections.abc import Iterable, Sequence
from math import inf, isinf
from typing import Annotated, NamedTuple, TypeAlias

import torch
from torch import Tensor

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number, UserInput
from orderone.core.reals import real
from orderone.measure.kernels.matrices import Matrix, flat_kernel, tensor

LOSSES = ("mse", "half-sum")
ROUNDING = 1e-12  # relative size of eigenvalues that are zero
Batches: TypeAlias = Annotated[Iterable[Sequence[int]], UserInput]


class Trained(NamedTuple):
    """Outputs at the training inputs, and at the test inputs if their kernel is known."""

    train: Tensor
    test: Tensor | None


class MSEDynamics:
    """Training on mean squared errors with the constant tangent kernel `ntk`.

    `ntk` is (train, train), the same for each output, or (train, train, k, k). `targets` and
    `initial` (0 by default) are (train,) or (train, k). `test_ntk` is the kernel between test and
    train inputs, and `test_initial` the outputs of the network there before training.
    """

    def __init__(
        self,
        ntk: Matrix,
        targets: Matrix,
        initial: Matrix | None = None,
        *,
        test_ntk: Matrix | None = None,
        test_initial: Matrix | None = None,
        loss: Name = "mse",
    ) -> None:
        y = tensor(targets, "targets")
        self._shape = y.shape[1:]
        self._dtype = y.dtype
        if y.dim() not in (1, 2):
            raise InputError(
                f"targets: expected shape (examples,) or (examples, outputs), got {tuple(y.shape)}",
                argument="targets",
            )
        outputs = y.shape[1] if y.dim() == 2 else None
        matrix, self._coupled = flat_kernel(ntk, "ntk", outputs)
        _check_square(matrix, y.shape[0], self._coupled)
        self._matrix = matrix
        y = self._columns(y.double().to(matrix.device))
        start = torch.zeros_like(y)
        if initial is not None:
            start = self._columns(self._like(initial, "initial", y.shape[0] // self._coupled))
        self._start = start
        self._error = start - y
        loss = one_of(loss, LOSSES, "loss")
        self._factor = 2 / y.numel() if loss == "mse" else 1.0
        values, self._vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        _check_semidefinite(values)
        self._values = values.clamp(min=0.0)
        self._test: Tensor | None = None
        self._test_start: Tensor | None = None
        if test_ntk is not None:
            self._test = flat_kernel(test_ntk, "test_ntk", outputs)[0].to(matrix.device)
            self._test_start = self._initial_of_tests(self._test, test_initial)

    def _initial_of_tests(self, kernel: Tensor, initial: Matrix | None) -> Tensor:
        """Return the initial outputs of the test examples as columns; by default zeros."""
        tests = kernel.shape[0] // self._coupled
        if initial is not None:
            return self._columns(self._like(initial, "test_initial", tests))
        zeros = torch.zeros(tests, *self._shape, dtype=torch.float64, device=kernel.device)
        return self._columns(zeros)

    @property
    def largest_stable_lr(self) -> float:
        """Return 2 / (s lambda_max), above which gradient descent without momentum diverges."""
        return 2 / (self._factor * float(self._values.max()))

    def flow(self, time: Number = inf) -> Trained:
        """Return the outputs after gradient flow for `time`; inf is the end of training."""
        if not (isinstance(time, float) and isinf(time) and time > 0):
            time = real(time, "time", least=0)
        zero = self._values <= ROUNDING * self._values.max()
        safe = torch.where(zero, 1.0, self._values)
        if isinf(time):  # directions without gradient never move
            growth = torch.where(zero, 0.0, 1 / safe)
        else:
            decayed = -torch.expm1(-self._factor * time * self._values)
            growth = torch.where(zero, self._factor * time, decayed / safe)
        return self._trained(-growth)

    def gradient_descent(
        self,
        steps: Count,
        lr: Number,
        *,
        momentum: Number = 0.0,
        dampening: Number = 0.0,
        nesterov: bool = False,
    ) -> Trained:
        """Return the outputs after full-batch `torch.optim.SGD`, with its arguments."""
        steps = count(steps, "steps", least=0)
        rate = real(lr, "lr", above=0)
        mu = real(momentum, "momentum", least=0)
        damp = 1 - real(dampening, "dampening")
        values = self._values
        # gradient g = s (r_0 + lambda w), for r_0 = 1; state (w, v, 1)
        slope = self._factor * values
        constant = torch.full_like(values, self._factor)
        one = torch.ones_like(values)
        zero = torch.zeros_like(values)

        def step(first: bool) -> Tensor:
            scale = 1.0 if first else damp  # torch does not dampen the first gradient
            v = torch.stack([scale * slope, mu * one, scale * constant], -1)
            if nesterov:
                along = torch.stack([slope, zero, constant], -1) + mu * v
            else:
                along = v
            if mu == 0:
                along = torch.stack([slope, zero, constant], -1)
            w = torch.stack([one, zero, zero], -1) - rate * along
            return torch.stack([w, v, torch.stack([zero, zero, one], -1)], -2)

        state = torch.stack([zero, zero, one], -1).unsqueeze(-1)
        if steps > 0:
            state = step(first=True) @ state
            state = torch.linalg.matrix_power(step(first=False), steps - 1) @ state
        return self._trained(state[:, 0, 0])

    def sgd(self, batches: Batches, lr: Number) -> Trained:
        """Return the outputs after one step of SGD per batch; a batch is a list of examples."""
        rate = real(lr, "lr", above=0)
        if self._coupled > 1:
            raise InputError(
                "ntk: expected a kernel of shape (train, train) for sgd with batches",
                argument="ntk",
            )
        error = self._error.clone()
        weights = torch.zeros_like(error)
        outputs = error.shape[1]
        for batch in batches:
            chosen = torch.as_tensor(list(batch), device=error.device)
            if self._factor == 1.0:
                factor = 1.0
            else:
                factor = 2 / (len(chosen) * outputs)
            change = -rate * factor * error[chosen]
            weights.index_add_(0, chosen, change)
            error += self._matrix[:, chosen] @ change
        return self._result(weights)

    def _trained(self, growth: Tensor) -> Trained:
        """Return the outputs for w = V growth V^T r_0."""
        weights = self._vectors @ (growth.unsqueeze(1) * (self._vectors.T @ self._error))
        return self._result(weights)

    def _result(self, weights: Tensor) -> Trained:
        train = self._start + self._matrix @ weights
        test = None
        if self._test is not None and self._test_start is not None:
            test = self._shaped(self._test_start + self._test @ weights)
        return Trained(self._shaped(train), test)

    def _columns(self, values: Tensor) -> Tensor:
        """Return (points, columns) as the kernel needs it: outputs in columns, or in points."""
        if self._coupled > 1:
            return values.reshape(-1, 1)
        return values.reshape(values.shape[0], -1)

    def _shaped(self, columns: Tensor) -> Tensor:
        return columns.reshape(-1, *self._shape).to(self._dtype)

    def _like(self, values: Matrix, name: str, examples: int) -> Tensor:
        found = tensor(values, name).double().to(self._matrix.device)
        if found.shape != (examples, *self._shape):
            raise InputError(
                f"{name}: expected shape {(examples, *self._shape)}, got {tuple(found.shape)}",
                argument=name,
            )
        return found


def _check_square(matrix: Tensor, examples: int, coupled: int) -> None:
    if matrix.shape != (examples * coupled,) * 2:
        raise InputError(
            f"ntk: expected a square kernel of {examples} examples, got the shape"
            f" {tuple(matrix.shape)}",
            argument="ntk",
        )


def _check_semidefinite(eigenvalues: Tensor) -> None:
    smallest = float(eigenvalues.min())
    if smallest < -1e-6 * float(eigenvalues.abs().max()):
        raise InputError(
            f"ntk: expected a positive semidefinite kernel, got the eigenvalue {smallest:.3g}",
            "not-a-covariance",
            argument="ntk",
        )
