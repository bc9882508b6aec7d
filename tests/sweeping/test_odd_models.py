"""Models that use their weights in uncommon ways: stacked losses equal stand-alone ones, or there
is a reason."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from orderone.core.errors import code_of
from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import run_alone
from orderone.sweeping.stacked import NotStackable, Stack
from orderone.training.source import Source


class Own(nn.Module):
    """Model with an 8 x 6 matrix, used by `use(x, w)`, then a head."""

    def __init__(self, use):
        super().__init__()
        self.w, self.head, self.use = nn.Parameter(torch.randn(8, 6) / 3), nn.Linear(8, 3), use

    def forward(self, x):
        return self.head(torch.tanh(self.use(x, self.w)))


class Attending(nn.Module):
    def __init__(self, need_weights):
        super().__init__()
        self.up, self.attention, self.head = (
            nn.Linear(6, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 3),
        )
        self.need_weights = need_weights

    def forward(self, x):
        h = self.up(x).unsqueeze(0)
        return self.head(self.attention(h, h, h, need_weights=self.need_weights)[0].squeeze(0))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.up, self.encoder, self.head = (
            nn.Linear(6, 8),
            nn.TransformerEncoder(layer, 2),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        padding = torch.arange(x.shape[0]).unsqueeze(0) >= 4
        return self.head(
            self.encoder(self.up(x).unsqueeze(0), src_key_padding_mask=padding).squeeze(0)
        )


class Averaging(nn.Module):
    """Model with a buffer that is replaced, not changed in place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.head(x - self.mean)


class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.turn = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)]), 0

    def forward(self, x):
        self.turn += 1
        return self.parts[self.turn % 2](x)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.first.weight.requires_grad_(False)

    def forward(self, x):
        return self.head(self.first(x).relu())


MODELS = {
    "x @ W.T": lambda: Own(lambda x, w: x @ w.T),
    "mm": lambda: Own(lambda x, w: torch.mm(x, w.t())),
    "inner": lambda: Own(torch.inner),
    "einsum": lambda: Own(lambda x, w: torch.einsum("bi,oi->bo", x, w)),
    "W @ x.T": lambda: Own(lambda x, w: (w @ x.T).T),
    "weight norm": lambda: Own(lambda x, w: functional.linear(x, w / w.norm(dim=1, keepdim=True))),
    "multi-head attention": lambda: Attending(False),
    "multi-head attention, weights": lambda: Attending(True),
    "encoder with padding": Encoder,
    "replaced buffer": Averaging,
    "alternating": Alternating,
    "frozen": Frozen,
}


def batch(step, seed):
    generator = torch.Generator().manual_seed(100 * seed + step)
    x = torch.randn(5, 6, dtype=torch.float64, generator=generator)
    return x, x[:, :3].argmax(1)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("make", MODELS.values(), ids=list(MODELS))
def test_losses_are_those_of_stand_alone_runs(make, optimizer):
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(make().double())
    copies = copy.deepcopy(models)
    stack = Stack(
        models, [optimizer(m.parameters(), lr=0.03, weight_decay=0.1) for m in models], clip=2.0
    )
    rows = [[batch(step, k) for k in range(2)] for step in range(12)]
    seen = torch.stack(
        [stack.step(tuple(map(torch.stack, zip(*row, strict=True)))) for row in rows]
    )
    wanted = [_alone(m, optimizer, [row[k] for row in rows]) for k, m in enumerate(copies)]
    assert torch.allclose(seen, torch.stack(wanted, 1), rtol=1e-9, atol=0)


def _alone(model, optimizer, data):
    steps = optimizer(model.parameters(), lr=0.03, weight_decay=0.1)
    losses = []
    for x, y in data:
        loss = functional.cross_entropy(model(x), y)
        steps.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        steps.step()
        losses.append(loss.detach())
    return torch.stack(losses)


# --- state outside parameters and buffers ---------------------------------------------------------


class Holding(nn.Module):
    """Model with something random as a plain attribute."""

    def __init__(self, thing):
        super().__init__()
        self.head, self.thing = nn.Linear(6, 3), thing

    def forward(self, x):
        return self.head(x)


class Something:
    def __init__(self, number):
        self.number = number


@pytest.mark.parametrize(
    "thing",
    [
        lambda k: torch.full((2, 2), float(k)),
        lambda k: [1, [2, k]],
        lambda k: {"a": np.full(3, k)},
        lambda k: Something({k}),
        lambda k: (torch.relu, torch.tanh)[k],
    ],
)
def test_members_with_different_attributes_cannot_be_stacked(thing):
    models = [Holding(thing(k)) for k in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    with pytest.raises(NotStackable) as caught:
        Stack(models, optimizers)
    assert caught.value.code == "members-differ"
    assert str(caught.value).startswith("thing: ")
    same = [Holding(thing(1)) for _ in range(2)]
    assert len(Stack(same, [torch.optim.SGD(m.parameters(), lr=0.1) for m in same])) == 2


# --- models that are trained one after another ----------------------------------------------------


class Rounding(nn.Module):
    """Model that reads a number from a tensor, which differs between members."""

    def __init__(self, width):
        super().__init__()
        self.first, self.head = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x):
        h = self.first(x)
        return self.head(h / h.abs().max().item())


class Listing(nn.Module):
    """Model with weights in a plain list."""

    def __init__(self, width):
        super().__init__()
        self.first, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.weights = [self.first.weight]

    def forward(self, x):
        return self.head(functional.linear(x, self.weights[0]))


@pytest.mark.parametrize(
    ("build", "code"),
    [(Rounding, "not-vectorizable"), (Listing, "unregistered-parameter")],
)
def test_models_that_cannot_be_stacked_are_trained_one_after_another(build, code):
    held_out = [batch(99, 9)]
    job = Job(
        build,
        Source("numbers", batch, lambda: held_out),
        steps=3,
        base_sizes={"width": 4},
        precision="float64",
    )
    trials = [
        job.trial({"width": 8, "optimizer": "adamw", "rule": "mup", "lr": 1e-2, "seed": s})
        for s in range(2)
    ]
    with pytest.raises(NotStackable) as caught:
        list(Engine(job, stacked=True).run(trials))
    assert caught.value.code == code
    found, wanted = (
        sorted(o, key=lambda o: o.key) for o in (Engine(job).run(trials), run_alone(job, trials))
    )
    assert all(np.array_equal(o.losses, p.losses) for o, p in zip(found, wanted, strict=True))
    assert all(code_of(str(o.facts["not stacked"])) == code for o in found)


def test_a_note_explains_why_trials_were_not_stacked():
    import orderone as o1

    found = o1.sweep(
        Rounding,
        {"lr": [1e-3, 1e-2]},
        widths=[4],
        data=batch,
        steps=2,
        precision="float64",
        progress=False,
    )
    [note] = found.notes
    assert code_of(note) == "not-vectorizable"
    assert "one after another" in note
