"""A training with the probe is bit for bit the training without it."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from probe_oracle import adamw, batch, squares, train, twins, zoo_loss
from support.zoo import ZOO
from torch import Tensor, nn

import orderone as o1
from orderone.measure.recording import QUANTITIES
from orderone.observe.batches import repeatable


class Restless(nn.Module):
    """A model whose pass changes buffers and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.first(x)))
        self.seen += 1
        self.average = 0.9 * self.average + h.detach().mean(0)  # a new tensor
        return self.last(h + np.random.rand())


def random_states() -> list[Any]:
    """Return the random states of torch and numpy.

    Not that of Python: beartype, which checks types in tests, draws from it.
    """
    numpys: Any = np.random.get_state()
    return [torch.random.get_rng_state().tolist(), numpys[1].tolist(), numpys[2]]


def history(
    build: Callable[[], nn.Module], loss: Callable[[nn.Module, int], Tensor], **options: Any
) -> list[Any]:
    """Return the complete result of a training, with a probe if there are `options`."""
    model = twins(build)[0]
    np.random.seed(0)
    optimizer, losses = adamw(model), []
    with o1.probe(model, optimizer, **options) if options else nullcontext():
        for step in range(3):
            optimizer.zero_grad()
            value = loss(model, step)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    gradients = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
    state = {name: x.tolist() for name, x in model.state_dict().items()}
    buffers = [(name, x.tolist()) for name, x in model.named_buffers()]
    return [losses, state, gradients, buffers, random_states()]


PROBE_OPTIONS = {
    "default": {"every": 1},
    "batch": {"batch": batch(9, 5, 6)},
    "everything": {"batch": batch(9, 5, 6), "quantities": QUANTITIES},
}


@pytest.mark.parametrize("look", PROBE_OPTIONS)
def test_a_training_is_bit_for_bit_the_same(look):
    assert history(Restless, squares, **PROBE_OPTIONS[look]) == history(Restless, squares)


def test_a_training_of_gpt2_with_dropout_is_bit_for_bit_the_same():
    from transformers import GPT2Config, GPT2LMHeadModel

    config: dict[str, Any] = {
        "vocab_size": 101,
        "n_positions": 32,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 1,
    }

    def build() -> nn.Module:
        return GPT2LMHeadModel(
            GPT2Config(**config, eos_token_id=2, attn_pdrop=0.1, resid_pdrop=0.1)
        )

    loss = zoo_loss(ZOO["gpt2"])
    options = {"batch": ZOO["gpt2"].batch(9), "quantities": QUANTITIES}
    assert history(build, loss, **options) == history(build, loss)


def test_a_repeated_pass_draws_the_same_random_numbers_and_restores_all_states():
    def draw() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    model, drawn = Restless(), []
    for seed in range(2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        with repeatable(model):
            drawn.append(draw())
        after = draw()
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert draw()[1:] == after[1:]
        assert after[0] in [
            random.Random(seed).random(),
            *(random.random() for _ in range(9)),
        ]  # beartype draws, too
    assert drawn[0] == drawn[1]


def test_change_is_measured_with_the_same_masks():
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    frame = train(model, optimizer, batch=batch(9, 5, 6))
    assert (frame.loc[frame["quantity"] == "change", "max"] == 0).all()


def test_a_graph_that_is_alive_can_still_be_walked_after_a_pass_on_the_fixed_batch():
    """Unchanged buffers are not written into."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8).eval())
    loss = squares(model, 0)
    with o1.probe(model, adamw(model), batch=batch(9, 5, 6)):
        loss.backward()
