"""Forward passes that depend on values, recompute blocks or store weights twice: stacked losses
equal stand-alone ones."""

import copy
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as recomputing
from support import hf_subjects
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from orderone.observe.batches import loss_of
from orderone.sweeping.stacked import NotStackable, Stack

MEMBERS, STEPS = 3, 6
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def numbers(generator):
    x = torch.randn(5, 6, dtype=torch.float64, generator=generator)
    return x, x[:, :3].argmax(1)


def stacked_and_alone(make, batch, steps=STEPS, device="cpu"):
    """Return the losses (steps, members) of the stack and of stand-alone runs."""
    models = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        models.append(make().double().train().to(device))
    copies, generator = copy.deepcopy(models), torch.Generator().manual_seed(0)
    rows = [
        [tree_map(lambda x: x.to(device), batch(generator)) for _ in models] for _ in range(steps)
    ]
    stack = Stack(
        models, [torch.optim.AdamW(m.parameters(), lr=0.01 * 2**k) for k, m in enumerate(models)]
    )
    seen = torch.stack([stack.step(tree_map(lambda *x: torch.stack(x), *row)) for row in rows])
    wanted = [_alone(m, 0.01 * 2**k, [row[k] for row in rows]) for k, m in enumerate(copies)]
    return seen, torch.stack(wanted, 1)


def _alone(model, lr, data):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=lr), []
    for batch in data:
        loss = loss_of(model, batch, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.fixture(params=DEVICES)
def agree(request):
    def check(make, batch=numbers, steps=STEPS):
        seen, wanted = stacked_and_alone(make, batch, steps, request.param)
        assert torch.isfinite(wanted).all()
        assert torch.allclose(seen, wanted, rtol=1e-9, atol=0)

    return check


# --- Hugging Face ---------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["never", "always", "sometimes"])
@pytest.mark.parametrize("name", hf_subjects.MODELS)
def test_attention_masks_of_hugging_face(agree, name, padding):
    agree(hf_subjects.MODELS[name], lambda g: hf_subjects.padded(g, padding))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_attention_masks_without_fused_attention(agree, name):
    agree(
        lambda: hf_subjects.MODELS[name](attn_implementation="eager"),
        lambda g: hf_subjects.padded(g, "sometimes"),
    )


def test_checkpointed_layers_of_hugging_face(agree):
    def make():
        model: Any = hf_subjects.llama(use_cache=False)
        # 5.23 warns of the old name, 5.20 does not know the new one
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable()
        else:
            model.gradient_checkpointing_enable()
        return model

    agree(make, lambda g: hf_subjects.padded(g, "sometimes"))


# --- decisions ------------------------------------------------------------------------------------


class Deciding(nn.Module):
    """Model that makes a decision at every step, which may differ between members."""

    def __init__(self, decide, normalised=False):
        super().__init__()
        self.first, self.head, self.decide = nn.Linear(6, 8), nn.Linear(8, 3), decide
        self.norm = nn.BatchNorm1d(8) if normalised else nn.Identity()

    def forward(self, x):
        h = self.first(x)
        return self.head(self.norm(torch.tanh(h) if self.decide(h) else h))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(
    "decide",
    [
        lambda h: h.sum() > 0,
        lambda h: (h.sum() > 0).item(),
        lambda h: int((h > 0.5).sum()) % 3,
        lambda h: h.sum() > 0 and h[0, 0] > 0,
        lambda h: torch.is_nonzero(h[0, 0] > 0),
        lambda h: any(row.sum() > 1 for row in h),
    ],
)
def test_members_may_decide_differently(agree, decide, normalised):
    agree(lambda: Deciding(decide, normalised), steps=10)


class DecidingLate(Deciding):
    def forward(self, x):
        h = self.norm(self.first(x))
        return self.head(torch.tanh(h) if self.decide(h) else h)


class Counting(Deciding):
    seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("make", "code", "name"),
    [
        (
            lambda: DecidingLate(lambda h: h[0, 0] > 0, True),
            "changes-before-decision",
            "norm.",
        ),
        (lambda: Counting(lambda h: h[0, 0] > 0), "changes-before-decision", "seen "),
        (
            lambda: Deciding(lambda h: h.sum().item() > 0),
            "not-vectorizable",
            "the model (Deciding)",
        ),
    ],
)
def test_decisions_that_cannot_be_stacked_are_refused(make, code, name):
    """The forward pass changes something before a decision, or reads a real number."""
    with pytest.raises(NotStackable) as caught:
        stacked_and_alone(make, numbers, steps=10)
    assert caught.value.code == code
    assert str(caught.value).startswith(name)


# --- blocks that are recomputed in the backward pass ----------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.block, self.head, self.reentrant = (
            nn.Linear(6, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
            reentrant,
        )

    def forward(self, x):
        h = self.first(x)
        return self.head(
            checkpoint(lambda h: torch.tanh(self.block(h)), h, use_reentrant=self.reentrant)
        )


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks(agree, reentrant):
    agree(lambda: Checkpointed(reentrant))


def test_torch_checkpoint_is_restored_afterwards():
    before = dict(vars(recomputing))
    stacked_and_alone(lambda: Checkpointed(False), numbers, steps=1)
    assert dict(vars(recomputing)) == before


# --- recurrent networks ---------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind, start=False, **options):
        super().__init__()
        self.core = kind(6, 8, **options)
        ways = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(ways * (options.get("proj_size") or 8), 3)
        self.start = nn.Parameter(torch.randn(1, 1, 8)) if start else None

    def forward(self, x):
        states = () if self.start is None else (self.start,)
        return self.head(self.core(x.unsqueeze(1), *states)[0].squeeze(1))


@pytest.mark.filterwarnings(
    "ignore:RNN module weights are not part of single"
)  # copies of a model, on a GPU
@pytest.mark.parametrize(
    "make",
    [
        lambda: Recurrent(nn.LSTM),
        lambda: Recurrent(nn.GRU),
        lambda: Recurrent(nn.RNN, nonlinearity="relu"),
        lambda: Recurrent(nn.GRU, start=True),
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True),
        lambda: Recurrent(nn.LSTM, proj_size=4, bias=False),
    ],
)
def test_recurrent_networks(agree, make):
    agree(make)


def test_weights_in_a_stack_are_not_moved(monkeypatch):
    """On a GPU an RNN would move new weights into one block of memory."""
    models = [Recurrent(nn.GRU).double() for _ in range(2)]
    stack = Stack(models, [torch.optim.SGD(m.parameters(), lr=0.1) for m in models])
    monkeypatch.setattr(
        nn.RNNBase, "flatten_parameters", lambda core: pytest.fail("there is nothing to move")
    )
    x, y = numbers(torch.Generator().manual_seed(0))
    assert torch.isfinite(stack.step((x.expand(2, *x.shape), y.expand(2, -1)))).all()


class Cell(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        state = self.cell(x)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(agree, kind):
    agree(lambda: Cell(kind))


def test_the_weights_of_the_model_are_restored():
    torch.manual_seed(0)
    models = [Recurrent(nn.LSTM).double() for _ in range(2)]
    stack = Stack(models, [torch.optim.SGD(m.parameters(), lr=0.1) for m in models])
    x, y = numbers(torch.Generator().manual_seed(0))
    stack.step((torch.stack([x, x]), torch.stack([y, y])))
    assert all(
        weight is p
        for weight, p in zip(models[0].core._flat_weights, models[0].core.parameters(), strict=True)
    )


def test_recurrent_weights_that_are_computed_are_refused():
    models = [Recurrent(nn.GRU).double() for _ in range(2)]
    for model in models:
        nn.utils.parametrizations.weight_norm(model.core, "weight_hh_l0")
    stack = Stack(models, [torch.optim.SGD(m.parameters(), lr=0.1) for m in models])
    x, y = numbers(torch.Generator().manual_seed(0))
    with pytest.raises(NotStackable) as caught:
        stack.step((torch.stack([x, x]), torch.stack([y, y])))
    assert caught.value.code == "parametrized-recurrence"
    assert "GRU" in str(caught.value)


class HoldingTwice(nn.Module):
    """Model with a weight in a plain list, where it is not replaced by that of each member."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 3)
        self.gains = [self.gain]

    def forward(self, x):
        return functional.linear(x * self.gains[0], self.head.weight)


def test_a_weight_in_a_plain_list_is_named():
    models = [HoldingTwice() for _ in range(2)]
    with pytest.raises(NotStackable) as caught:
        Stack(models, [torch.optim.SGD(m.parameters(), lr=0.1) for m in models])
    assert caught.value.code == "unregistered-parameter"
    assert str(caught.value).startswith("gains ")
