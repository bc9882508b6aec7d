"""Gradient noise scale, an estimate of the critical batch size.

The gradient of a batch of B samples is G_B = G + noise, where the noise has the covariance
Sigma / B. The simple noise scale compares both (McCandlish et al. 2018, arXiv:1812.06162, (2.9)):

    B_noise = tr(Sigma) / |G|^2

At B = B_noise signal and noise of a gradient are of the same size. Far below it, twice the batch
needs half the steps; far above, as many. Neither number can be read off a single gradient, since

    E |G_B|^2 = |G|^2 + tr(Sigma) / B

Two batch sizes b < B solve for both, without bias (McCandlish et al., appendix A.1):

    |G|^2     = (B |G_B|^2 - b |G_b|^2) / (B - b)
    tr(Sigma) = (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)

Here K passes of b samples give |G_b|^2 as an average over the passes, and |G_B|^2 from the average
gradient, B = K b. Both numbers are averaged over all steps before they are divided. A loss that is
not divided by K multiplies all gradients by the same number, and the ratio stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, function, instance
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.loading.examples import read_examples
from orderone.measure.inputs import BatchesInput, CollateInput, LossInput, ModelInput
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import loss_of, on_device
from orderone.observe.inventory import unwrap
from orderone.observe.trace import undisturbed
from orderone.torch_compat import tree_leaves


@dataclass(frozen=True)
class NoiseScale:
    """Measured size of gradient and noise. Pass it to `plan(..., critical_batch=...)`.

    Attributes:
        signal: Estimate of |G|^2, the square of the gradient without noise.
        noise: Estimate of tr(Sigma), the variance of the gradient of one sample.
        samples: Samples that were used.
    """

    signal: float
    noise: float
    samples: int

    @property
    def critical_batch(self) -> float:
        """tr(Sigma) / |G|^2 in samples; infinite if the signal is lost in the noise."""
        if self.signal > 0:
            return self.noise / self.signal
        return inf

    def __str__(self) -> str:
        return (
            f"critical batch size {self.critical_batch:.4g} samples: gradient noise tr(Sigma)"
            f" {self.noise:.4g}, squared gradient {self.signal:.4g}, from {self.samples} samples"
        )


class NoiseMeter:
    """Gather gradients of backward passes; a step has several passes of the same size."""

    def __init__(self, parameters: Mapping[str, Tensor], samples: int):
        self.parameters: list[Tensor] = [p for p in parameters.values() if p.requires_grad]
        self.samples = samples  # in one pass
        self.signal: float = 0.0
        self.noise: float = 0.0
        self.steps: int = 0  # with two passes or more
        self.passes: int = 0  # in all of these steps
        self._sums: dict[Tensor, Tensor] = {}
        self._counts: dict[Tensor, int] = {}
        self._squares: list[Tensor] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Gather the gradients of all passes inside the context."""
        handles = [p.register_hook(lambda g, p=p: self._add(p, g)) for p in self.parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._sums = {}

    @torch.no_grad()
    def _add(self, parameter: Tensor, gradient: Tensor) -> None:
        if gradient.is_sparse:
            dense = gradient.to_dense()
        else:
            dense = gradient
        self._squares.append(_squared_norm(dense))
        self._counts[parameter] = self._counts.get(parameter, 0) + 1
        if parameter in self._sums:
            self._sums[parameter] += dense
        else:
            self._sums[parameter] = dense.clone()

    @torch.no_grad()
    def end_step(self) -> None:
        """Add the passes since the last step to the estimate."""
        passes = max(self._counts.values(), default=0)
        if passes > 1:
            small = float(sum(square.double().cpu() for square in self._squares)) / passes
            sums = [_squared_norm(total).double().cpu() for total in self._sums.values()]
            large = float(sum(sums)) / passes**2
            b = self.samples
            B = passes * b
            self.signal += (B * large - b * small) / (B - b)
            self.noise += (small - large) / (1 / b - 1 / B)
            self.steps += 1
            self.passes += passes
        self._sums = {}
        self._counts = {}
        self._squares = []

    def result(self) -> NoiseScale:
        """Return the estimate of all steps; raise an InputError if there is none."""
        if not self.steps:
            raise InputError(
                "noise: expected at least two backward passes in a step, as with accumulated"
                " gradients; got one. Use orderone.noise_scale(model, batches), which makes them",
                "noise-needs-passes",
                argument="noise",
            )
        samples = self.passes * self.samples
        return NoiseScale(self.signal / self.steps, self.noise / self.steps, samples)


def noise_scale(
    model: ModelInput,
    batches: BatchesInput,
    *,
    loss: LossInput | None = None,
    steps: Count = 32,
    batch_size: Count | None = None,
    collate_fn: CollateInput | None = None,
) -> NoiseScale:
    """Measure the gradient noise scale of a model at its present weights.

    It grows in training, so a measurement at initialization is too small for later; measure a model
    that has trained for a while. Nothing is changed: weights, gradients and buffers stay. The model
    runs in eval mode, without dropout. The loss must be an average over the samples of a batch.

    Args:
        model: Any nn.Module.
        batches: Batches of equal size in any form that `coord_check` takes; they must differ.
        loss: As in `coord_check`.
        steps: Number of batches. The error falls like its root.
        batch_size: Samples in a batch, for a data set, a DataLoader or a function that takes it.
        collate_fn: Function that makes a batch of a list of samples, for a data set.
    """
    instance(model, nn.Module, "model", "pass the module that is trained")
    function(loss, "loss", "of output and target")
    examples = read_examples(batches, count(steps, "steps", least=2), batch_size, collate_fn)
    inner = unwrap(model)
    if all(batch is examples.batches[0] for batch in examples.batches):
        raise InputError(
            "batches: expected different batches, got one for all steps, whose gradients have no"
            " noise; pass a list, a data set or a function of (step, seed)",
            "noise-needs-passes",
            argument="batches",
        )
    sizes = {samples_in(batch) for batch in examples.batches}
    if len(sizes) != 1:
        raise InputError(
            "batches: expected batches of equal size, got"
            f" {', '.join(map(str, sorted(sizes)))} samples; drop the last one (drop_last=True)",
            argument="batches",
        )
    parameters = {name: p for name, p in inner.named_parameters() if p.requires_grad}
    meter = NoiseMeter(parameters, sizes.pop())
    with undisturbed(inner), meter.watch(), torch.enable_grad():
        for batch in examples.batches:
            here = on_device(batch, inner)
            with naming_batch("batches", here, inner):
                value = loss_of(inner, here, loss)
            torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        meter.end_step()
    return meter.result()


def samples_in(batch: object) -> int:
    """Return the number of samples of a batch: the first dimension of its tensors."""
    leaves: Sequence[object] = tree_leaves(batch)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]
    raise InputError(
        "batches: expected tensors whose first dimension counts samples, got none",
        argument="batches",
    )


def _squared_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float32 if not x.is_complex() else None) ** 2
