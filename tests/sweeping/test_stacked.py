"""Stacked training gives each member the losses of its stand-alone run, whatever the model, the
optimizer and the other members."""

import copy
import pickle
from typing import Any

import pytest
import torch
from support.stacked_subjects import SUBJECTS, Subject
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils._pytree import tree_map

import orderone as o1
from orderone.core.errors import InputError
from orderone.observe.batches import loss_of
from orderone.sweeping.stacked import NotStackable, Stack

OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "lion", "muon")


def members(subject: Subject, optimizer: str, number: int = 3, dtype=torch.float64, **options: Any):
    """Return planned models with different seeds, learning rates and weight decays, and their
    optimizers."""
    found = []
    for k in range(number):
        torch.manual_seed(k)
        model, base = subject.build(16).to(dtype), subject.build(8).to(dtype)
        lr = (1e-2 if optimizer == "sgd" else 2e-3) * 2**k
        plan = o1.plan(model, base=base, optimizer=optimizer, lr=lr, weight_decay=0.1 * k)
        plan.apply()
        found.append((model, lambda m, plan=plan: plan.attach(m).optimizer(**options)))
    return found


def batches(subject: Subject, steps: int, number: int = 3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    convert = lambda x: x.to(dtype) if x.is_floating_point() else x  # noqa: E731
    return [
        [tree_map(convert, subject.batch(generator)) for _ in range(number)] for _ in range(steps)
    ]


def alone(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Any], clip: float | None = None
):
    losses = []
    for batch in data:
        loss = loss_of(model, batch, None)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def together(stack: Stack, data: list[list[Any]]):
    return torch.stack([stack.step(tree_map(lambda *x: torch.stack(x), *row)) for row in data])


def both(
    subject: Subject,
    optimizer: str,
    steps: int,
    clip: float | None = None,
    dtype=torch.float64,
    **options: Any,
):
    found, data = (
        members(subject, optimizer, dtype=dtype, **options),
        batches(subject, steps, dtype=dtype),
    )
    copies = [copy.deepcopy(model) for model, _ in found]
    stack = Stack([model for model, _ in found], [make(model) for model, make in found], clip=clip)
    seen = together(stack, data)
    wanted = [
        alone(model, make(model), [row[k] for row in data], clip)
        for k, (model, (_, make)) in enumerate(zip(copies, found, strict=True))
    ]
    return seen, torch.stack(wanted, 1)


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=list(SUBJECTS))
def test_losses_are_those_of_stand_alone_runs(subject):
    seen, wanted = both(subject, "adamw", steps=30)
    assert torch.allclose(seen, wanted, rtol=1e-9, atol=0)
    assert not torch.allclose(wanted[:, 0], wanted[:, 1], rtol=1e-3)  # they are different trainings


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_equals_that_of_torch(optimizer):
    seen, wanted = both(SUBJECTS["mlp"], optimizer, steps=20)
    # Muon rounds to bfloat16 inside, so that a different last bit is visible
    assert torch.allclose(seen, wanted, rtol=1e-2 if optimizer == "muon" else 1e-9, atol=0)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {"momentum": 0.9}),
        ("sgd", {"momentum": 0.9, "nesterov": True}),
        ("sgd", {"momentum": 0.8, "dampening": 0.3}),
        ("adamw", {"betas": (0.8, 0.95)}),
        ("adafactor", {"beta2_decay": -0.5, "d": 1.5}),
    ],
)
def test_options_of_optimizers(optimizer, options):
    seen, wanted = both(SUBJECTS["mlp"], optimizer, steps=12, **options)
    assert torch.allclose(seen, wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"centered": True},
        {"momentum": 0.9, "alpha": 0.9},
        {"weight_decay": 0.1, "eps": 1e-3, "centered": True},
    ],
)
def test_rmsprop_of_the_user_equals_that_of_torch(options):
    subject = SUBJECTS["mlp"]
    models, data = [model for model, _ in members(subject, "sgd")], batches(subject, 20)
    make = lambda k, model: torch.optim.RMSprop(model.parameters(), lr=1e-3 * 2**k, **options)  # noqa: E731
    copies = [copy.deepcopy(model) for model in models]
    seen = together(Stack(models, [make(k, model) for k, model in enumerate(models)]), data)
    wanted = [
        alone(model, make(k, model), [row[k] for row in data]) for k, model in enumerate(copies)
    ]
    assert torch.allclose(seen, torch.stack(wanted, 1), rtol=1e-9, atol=0)


def test_members_of_rmsprop_may_differ_in_all_numbers():
    subject = SUBJECTS["mlp"]
    models, data = [model for model, _ in members(subject, "sgd")], batches(subject, 12)
    settings = [
        {"momentum": 0.5 * (k > 0), "alpha": 0.99 - 0.1 * k, "weight_decay": 0.1 * k}
        for k in range(3)
    ]
    make = lambda k, model: torch.optim.RMSprop(model.parameters(), lr=1e-3, **settings[k])  # noqa: E731
    copies = [copy.deepcopy(model) for model in models]
    seen = together(Stack(models, [make(k, model) for k, model in enumerate(models)]), data)
    wanted = [
        alone(model, make(k, model), [row[k] for row in data]) for k, model in enumerate(copies)
    ]
    assert torch.allclose(seen, torch.stack(wanted, 1), rtol=1e-9, atol=0)


def test_dropout_is_that_of_stand_alone_runs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    models = [copy.deepcopy(model) for _ in range(3)]
    stack = Stack(models, [torch.optim.SGD(model.parameters(), lr=0.0) for model in models])
    x, y = torch.randn(5, 4), torch.randint(2, (5,))
    stack.seed([1, 2, 1])
    losses = torch.stack([stack.step((x.expand(3, 5, 4), y.expand(3, 5))) for _ in range(4)])
    for k, seed in enumerate([1, 2, 1]):
        torch.manual_seed(seed)
        alone = [nn.functional.cross_entropy(model(x), y) for _ in range(4)]
        assert torch.allclose(losses[:, k], torch.stack(alone))
    assert len(losses.unique()) == 8  # weights and inputs are the same: only masks differ
    assert len(stack.evaluate((x, y)).unique()) == 1


IN_PLACE = {
    "dropout": lambda x: nn.functional.dropout(x, 0.5, True, True),
    "named": lambda x: nn.functional.dropout(x, 0.5, inplace=True),
    "alpha dropout": lambda x: nn.functional.alpha_dropout(x, 0.5, True, True),
    "torch": lambda x: torch.dropout_(x, 0.5, True),
    "channels": lambda x: nn.functional.dropout2d(x[..., None, None], 0.5, True, True)[..., 0, 0],
}


class DropsInPlace(nn.Module):
    """Dropout overwrites every second hidden unit; the result of the call is not used."""

    def __init__(self, how: str):
        super().__init__()
        self.inp = nn.Linear(4, 64)
        self.out = nn.Linear(64, 2)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inp(x)
        IN_PLACE[self.how](hidden[:, ::2])
        return self.out(hidden)


@pytest.mark.parametrize("how", IN_PLACE)
def test_dropout_in_place_is_that_of_stand_alone_runs(how):
    torch.manual_seed(0)
    models = [DropsInPlace(how) for _ in range(3)]
    copies = copy.deepcopy(models)
    stack = Stack(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    x, y = torch.randn(5, 4), torch.randint(2, (5,))
    stack.seed([1, 2, 3])
    losses = torch.stack([stack.step((x.expand(3, 5, 4), y.expand(3, 5))) for _ in range(4)])
    for k, model in enumerate(copies):
        torch.manual_seed([1, 2, 3][k])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = nn.functional.cross_entropy(model(x), y)
            assert torch.allclose(losses[step, k], loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_other_measures_than_the_loss():
    models = [nn.Linear(4, 3) for _ in range(3)]
    stack = Stack(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    inputs, targets = torch.randn(20, 4), torch.randint(3, (20,))
    seen = stack.evaluate(
        (inputs, targets), lambda output, target: (output.argmax(-1) == target).float().mean()
    )
    wanted = [(model(inputs).argmax(-1) == targets).float().mean() for model in models]
    assert torch.equal(seen, torch.stack(wanted))


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_single_precision_differs_by_rounding(name):
    seen, wanted = both(SUBJECTS[name], "adamw", steps=10, dtype=torch.float32)
    assert torch.allclose(seen, wanted, rtol=1e-5, atol=0)


def test_gradients_are_clipped_member_by_member():
    seen, wanted = both(SUBJECTS["mlp"], "sgd", steps=10, clip=0.3)
    assert torch.allclose(seen, wanted, rtol=1e-9, atol=0)
    assert not torch.allclose(seen, both(SUBJECTS["mlp"], "sgd", steps=10)[0], rtol=1e-4)


def test_several_batches_make_one_update():
    subject = SUBJECTS["gpt"]
    halves = batches(subject, 2)
    whole = [tree_map(lambda x, y: torch.cat([x, y]), a, b) for a, b in zip(*halves, strict=True)]
    stacks = []
    for _ in range(2):
        found = members(subject, "sgd")
        stacks.append(Stack([model for model, _ in found], [make(model) for model, make in found]))
    stacked = [tree_map(lambda *x: torch.stack(x), *row) for row in (*halves, whole)]
    assert torch.allclose(stacks[0].step(*stacked[:2]), stacks[1].step(stacked[2]), rtol=1e-12)
    for one, other in zip(
        stacks[0].parameters.values(), stacks[1].parameters.values(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-12)


def test_a_member_that_diverges_does_not_affect_others():
    subject = SUBJECTS["mlp"]
    found, data = members(subject, "sgd"), batches(subject, 20)
    models, optimizers = _stackable(found)
    for group in optimizers[1].param_groups:
        group["lr"] = 1e300
    seen = together(Stack(models, optimizers), data)
    calm = together(Stack(*_stackable(members(subject, "sgd"))), data)
    assert not torch.isfinite(seen[-1, 1])
    assert torch.equal(seen[:, [0, 2]], calm[:, [0, 2]])


def test_members_can_be_removed():
    subject = SUBJECTS["gpt"]
    data = batches(subject, 6)
    stack, whole = (
        Stack(*_stackable(members(subject, "adamw"))),
        Stack(*_stackable(members(subject, "adamw"))),
    )
    together(stack, data[:3])
    wanted = together(whole, data)
    stack.keep([0, 2])
    seen = together(stack, [[row[0], row[2]] for row in data[3:]])
    assert len(stack) == 2
    assert torch.allclose(seen, wanted[3:, [0, 2]], rtol=1e-12)
    assert torch.equal(stack.member(1)["words.weight"], stack.parameters["words.weight"][1])


def test_a_state_can_be_loaded_by_some_of_the_members():
    subject = SUBJECTS["mlp"]
    data = batches(subject, 6)
    stack = Stack(*_stackable(members(subject, "adamw")))
    together(stack, data[:3])
    state = {name: x.detach().clone() for name, x in stack.state().items()}
    wanted = together(stack, data[3:])
    later = Stack(*_stackable(members(subject, "adamw")[1:]))
    later.load(state, [1, 2])
    assert torch.allclose(together(later, [row[1:] for row in data[3:]]), wanted[:, 1:], rtol=1e-12)


def test_a_schedule_is_one_factor_for_all():
    subject = SUBJECTS["mlp"]
    stack = Stack(*_stackable(members(subject, "sgd")))
    before = {name: p.detach().clone() for name, p in stack.parameters.items()}
    (row,) = batches(subject, 1)
    stack.step(tree_map(lambda *x: torch.stack(x), *row), factor=0.0)
    assert all(torch.equal(p, before[name]) for name, p in stack.parameters.items())


def _stackable(found):
    return [model for model, _ in found], [make(model) for model, make in found]


# --- models and optimizers that cannot be stacked -------------------------------------------------


class Deciding(nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 0 else -x


def test_a_module_that_reads_values_is_named():
    models = [nn.Sequential(nn.Linear(4, 4), Deciding(), nn.Linear(4, 2)) for _ in range(2)]
    stack = Stack(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    with pytest.raises(NotStackable) as caught:
        stack.step((torch.randn(2, 3, 4), torch.randint(2, (2, 3))))
    assert caught.value.code == "not-vectorizable"
    assert str(caught.value).startswith("1 (Deciding) ")
    assert "stacked=False" in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            nn.Linear(4, 2),
            nn.Linear(4, 3),
            r"out_features: .*\b2\b.*\b3\b.*member 1",
        ),
        (nn.Linear(4, 2), nn.Linear(4, 2, bias=False), "bias: "),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.GELU()), "ReLU.*GELU"),
        (nn.Dropout(0.1), nn.Dropout(0.2), "p: .* got 0.1"),
        (nn.Linear(4, 2), nn.Linear(4, 2).double(), "float32.*float64"),
    ],
)
def test_members_that_differ_are_named(first, second, message):
    models = [nn.Sequential(nn.Linear(4, 4), part) for part in (first, second)]
    with pytest.raises(NotStackable, match=message) as caught:
        Stack(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    assert caught.value.code == "members-differ"


def test_the_error_can_be_sent_to_another_process():
    error = NotStackable("gains is a list", "unregistered-parameter", argument="build")
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is NotStackable
    assert (str(received), received.code) == (str(error), "unregistered-parameter")
    assert received.argument == "build"


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (
            lambda p, k: torch.optim.Rprop(p),
            "optimizer-not-stackable",
            r"torch\.optim\.Rprop",
        ),
        (
            lambda p, k: torch.optim.RMSprop(p, centered=bool(k)),
            "optimizer-not-stackable",
            "same centered .*False and True",
        ),
        (
            lambda p, k: torch.optim.Adam(p, amsgrad=True),
            "optimizer-not-stackable",
            "amsgrad=False, got True",
        ),
        (
            lambda p, k: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=bool(k)),
            "optimizer-not-stackable",
            "same nesterov .*False and True",
        ),
        (
            lambda p, k: torch.optim.SGD(nn.Linear(4, 2).parameters(), 0.1),
            "optimizer-of-other-model",
            r"shape \(2, 4\)",
        ),
        (
            lambda p, k: (torch.optim.SGD if k else torch.optim.Adam)(p, 0.1),
            "optimizer-not-stackable",
            r"torch\.optim\.Adam and torch\.optim\.SGD",
        ),
    ],
)
def test_optimizers_that_have_no_stacked_form_are_named(make, code, words):
    models = [nn.Linear(4, 2) for _ in range(2)]
    with pytest.raises(InputError, match=words) as caught:
        Stack(models, [make(model.parameters(), k) for k, model in enumerate(models)])
    assert caught.value.code == code
