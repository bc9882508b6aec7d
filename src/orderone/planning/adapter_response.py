"""Rates of adapters whose code is not read, from what a step of each tensor does to their output.

    y = f(x; theta_1, theta_2, ...)        one block with a frozen matrix and trained tensors

A token x with a gradient g of its output moves theta_j by lr sign(g dy/dtheta_j) (Adam, sign
updates) or lr g dy/dtheta_j (SGD), and y by the *response* R_j times lr: the root mean square of
its change. Gradients align updates with the token that made them, so a response has the coherent
sums that muP is about. muP asks that changes are of the same order at every size, with initial
values as the code of the adapter draws them:

    lr of theta_j    x R_j of the base / R_j of the target

An adapter starts without effect, so one of its tensors starts at zero, and others have no response
then. So tensors that start at zero have first made one such step, whose size follows their rate.
The responses depend on these rates, and both are solved for one tensor after the other.

Some results for Adam, with r the rank and m the number of outputs:

    LoRA    s B A x, B = 0: A 1, B 1 / (r s), as `rules.axes.rank` derives and a trace reads
    HiRA    W * (B A), B = 0: A 1, B 1 / r
    OFT     rotations of blocks of size b, matrices with as many inputs as outputs:
            ((b - 1) (1 + (b - 2) / pi + (b - 1) / 4))^-1/2, so 1 / b for large blocks
    VeRA    lambda_b B lambda_d A x with random B of size r^-1/2 and A: 1 for both while r is small
            beside m. All outputs share lambda_d, which aligns with one direction of m, so that r
            terms of size r^-1/2 add up to (1 + (4 / pi^2) r / m)^1/2 for r much larger than m

`tests/support/adapter_formulas.py` derives these. A mean over TOKENS tokens has a standard error:
with (pi / 2 - 1) / r the relative variance of a sum of r sizes, 7 % of the rate of B for LoRA from
rank 4 to 16, and 4 % from 16 to 64; several layers of a stack average it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import torch
from torch import Tensor, nn

from orderone.observe.inventory import modules_by_name, tensors_of
from orderone.observe.trace import undisturbed
from orderone.planning.block_calls import Call, calls_of_blocks, first_tensor, restored
from orderone.planning.options import ExampleBatch
from orderone.planning.roles.adapter_blocks import AdapterBlock
from orderone.torch_compat import tree_map

STEP = 1e-3  # size of the steps that are tried
TOKENS = 32  # tokens that responses are averaged over
SWEEPS = 2  # rounds over the tensors of a block
CHANGED = 1.5  # larger ratios of outputs at the start: the adapter does not start at zero

# the output of one token, and the gradients of all tensors for a random gradient of it
Token: TypeAlias = tuple[Tensor, list[Tensor]]
# the tokens at the start, by seed of the inputs and row of the output
Tokens: TypeAlias = dict[tuple[int, int], Token]


class NotMeasured(Exception):  # noqa: N818
    """The response of a block could not be measured; the message says why."""


@dataclass(frozen=True)
class Response:
    """Two sizes of one tensor: for a block, or as factors, target over base."""

    change: float  # of the output, for a step of size 1
    gradient: float

    def over(self, base: "Response") -> "Response":
        """Return the ratios of both sizes."""
        return Response(self.change / base.change, self.gradient / base.gradient)


def response_ratios(
    model: nn.Module,
    base: nn.Module,
    inputs: ExampleBatch,
    blocks: Sequence[AdapterBlock],
    power: int,
) -> dict[str, Response]:
    """Return the responses of all tensors of the blocks, target over base, by name in the target.

    `power` is 1 for optimizers that normalize (Adam), 2 for SGD.
    """
    found: dict[str, Response] = {}
    calls = calls_of_blocks(base, inputs, [block.base_name for block in blocks])
    with undisturbed(base), undisturbed(model), torch.no_grad():
        for block in blocks:
            if block.base_name not in calls:
                raise NotMeasured(f"the example batch does not reach {block.name}")
            call = calls[block.base_name]
            small = _Side(base, block.base_name, list(block.tensors.values()), call, power)
            large = _Side(model, block.name, list(block.tensors), call, power)
            found.update(_compare(block, small, large))
    return found


class _Side:
    """One block of base or target, with its trained tensors."""

    def __init__(self, model: nn.Module, name: str, tensors: Sequence[str], call: Call, power: int):
        every = tensors_of(model)
        self.block = modules_by_name(model)[name]
        self.tensors = [every[tensor] for tensor in tensors]
        self.zeros = [i for i, tensor in enumerate(self.tensors) if not bool(tensor.any())]
        self.call = call
        self.power = power
        self.inputs: dict[int, Call] = {}  # random ones, by their seed

    def output(self, seed: int) -> Tensor:
        """Return the outputs for random inputs, one token in each row."""
        if seed not in self.inputs:
            self.inputs[seed] = tree_map(lambda value: _random(value, seed), self.call)
        args, kwargs = tree_map(_copied, self.inputs[seed])
        output = first_tensor(self.block(*args, **kwargs))
        return output.reshape(-1, output.shape[-1])

    def tokens(self, seed: int, rows: Iterable[int]) -> list[Token]:
        """Return the outputs of some tokens, and the gradients of each."""
        with torch.enable_grad():
            outputs = self.output(seed)
            return [self._token(outputs[row], seed + row) for row in rows]

    def _token(self, output: Tensor, seed: int) -> Token:
        cotangent = _random_like(output, seed)
        gradients = torch.autograd.grad(
            output, self.tensors, cotangent, allow_unused=True, retain_graph=True
        )
        pairs = zip(gradients, self.tensors, strict=True)
        return output.detach(), [torch.zeros_like(t) if g is None else g for g, t in pairs]

    def at_the_start(self) -> Tokens:
        """Return TOKENS tokens."""
        rows = self.output(0).shape[0]
        found: Tokens = {}
        for seed in range(math.ceil(TOKENS / rows)):
            wanted = range(min(rows, TOKENS - seed * rows))
            pairs = zip(wanted, self.tokens(seed, wanted), strict=True)
            found.update({(seed, row): token for row, token in pairs})
        return found

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the step that an optimizer makes with the learning rate 1."""
        return -gradient.sign() if self.power == 1 else -gradient

    def response(self, index: int, start: Tokens, sizes: Sequence[float]) -> Response:
        """Return the response to one tensor, averaged over tokens.

        Tensors that start at zero have made a step with these learning rates, `sizes`.
        """
        found: list[Response] = []
        for (seed, row), token in start.items():
            with restored(self.tensors):
                for zero in self.zeros:
                    self.tensors[zero].copy_(self.direction(token[1][zero]) * sizes[zero])
                before, now = self.tokens(seed, [row])[0] if self.zeros else token
                gradient = now[index]
                direction = self.direction(gradient)
                size = _rms(direction)
                if size:
                    self.tensors[index].add_(direction, alpha=STEP / size)
                change = self.output(seed)[row] - before
                found.append(Response(_rms(change) * size / STEP, _rms(gradient)))
        changes = fmean(response.change for response in found)
        return Response(changes, fmean(response.gradient for response in found))


def _compare(block: AdapterBlock, small: _Side, large: _Side) -> dict[str, Response]:
    """Return the responses of the tensors of one block, target over base."""
    names = list(block.tensors)
    with restored(large.tensors):
        _with_sizes_of(large.tensors, small.tensors)
        _require_same_start(block, small, large)
        small_start = small.at_the_start()
        large_start = large.at_the_start()
        rates = [_rate_of_a_step(small, small_start, index) for index in range(len(names))]
        base: list[Response] = []
        for index, name in enumerate(names):
            base.append(_nonzero(small.response(index, small_start, rates), block, name))
        ratios = [Response(1.0, 1.0)] * len(names)
        order = [*small.zeros, *(i for i in range(len(names)) if i not in small.zeros)]
        for _ in range(SWEEPS):
            for index in order:
                pairs = zip(rates, ratios, strict=True)
                scaled = [rate / ratio.change for rate, ratio in pairs]
                target = large.response(index, large_start, scaled)
                ratios[index] = _nonzero(target, block, names[index]).over(base[index])
    return dict(zip(names, ratios, strict=True))


def _rate_of_a_step(side: _Side, start: Tokens, index: int) -> float:
    """Return the learning rate with which steps of a tensor have the size STEP on average."""
    size = fmean(_rms(side.direction(gradients[index])) for _, gradients in start.values())
    return STEP / size if size else STEP


def _nonzero(response: Response, block: AdapterBlock, name: str) -> Response:
    if not response.change or not response.gradient:
        raise NotMeasured(f"the output of {block.name} does not respond to {name}")
    return response


def _with_sizes_of(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Give tensors the root mean squares of others, as `apply` does."""
    for tensor, other in zip(tensors, others, strict=True):
        size = _rms(tensor)
        if size:
            tensor.mul_(_rms(other) / size)


def _require_same_start(block: AdapterBlock, small: _Side, large: _Side) -> None:
    ratio = _rms(large.output(0)) / max(_rms(small.output(0)), 1e-30)
    if not 1 / CHANGED < ratio < CHANGED:
        raise NotMeasured(
            f"the output of {block.name} changes by the factor {ratio:.3g} at the start, so that"
            " the adapter does not start at zero"
        )


def _rms(tensor: Tensor) -> float:
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=_double_of(tensor))
    return float(norm) / math.sqrt(tensor.numel())


def _double_of(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _copied(value: object) -> object:
    """Return a copy of a tensor: blocks may overwrite their inputs."""
    return value.clone() if isinstance(value, Tensor) else value


def _random_like(tensor: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator).to(tensor)


def _random(value: object, seed: int) -> object:
    """Return random numbers in place of a tensor of numbers."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return _random_like(value.detach(), seed)
    return value
