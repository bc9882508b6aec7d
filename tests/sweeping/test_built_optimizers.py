"""`build` that returns (model, optimizer): class and settings stay, the rule makes the groups."""

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
DATA = (X, (X[:, 0] > 0).long())
CALL = {"widths": [8, 16], "data": DATA, "steps": 4, "device": "cpu", "progress": False}


def net(width):
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


def losses(build, space, **options):
    return o1.sweep(build, space, **CALL | options).frame.loss.tolist()


def decayed(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}]


@pytest.mark.parametrize("stacked", [True, False])
def test_class_and_settings_stay(stacked):
    def build(width):
        model = net(width)
        return model, torch.optim.AdamW(decayed(model), lr=7e-3, betas=(0.5, 0.6), eps=1e-3)

    expected = losses(
        net,
        {"lr": [7e-3], "beta1": [0.5], "beta2": [0.6], "eps": [1e-3], "weight_decay": [0.5]},
        no_decay=("*.bias",),
        stacked=stacked,
    )
    assert losses(build, {"seed": [0]}, stacked=stacked) == expected  # its lr, without one
    assert losses(build, {"lr": [7e-3]}, stacked=stacked) == expected
    other = losses(build, {"lr": [2e-2]}, stacked=stacked)  # the space comes first
    assert other != expected


def test_sgd_with_momentum_is_sgd_with_momentum():
    def build(width):
        model = net(width)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    swept = o1.sweep(build, {"lr": [0.1]}, **CALL)
    assert set(swept.frame.optimizer) == {"sgd"}
    plain = losses(net, {"lr": [0.1], "momentum": [0.9]}, optimizer="sgd")
    assert swept.frame.loss.tolist() != plain  # nesterov stays too


def groups_with(**settings):
    def build(width):
        model = net(width)
        first, *rest = model.parameters()
        return model, torch.optim.AdamW([{"params": [first], **settings}, {"params": rest}])

    return build


def scaled(width):
    model = net(width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2 * 8 / width)


def without_a_tensor(width):
    model = net(width)
    return model, torch.optim.AdamW(list(model.parameters())[1:])


@pytest.mark.parametrize(
    ("build", "options", "code"),
    [
        (groups_with(lr=1e-4), {}, "groups-differ"),
        (groups_with(betas=(0.1, 0.2)), {}, "groups-differ"),
        (groups_with(weight_decay=0.3), {}, "groups-differ"),
        (scaled, {}, "optimizer-depends-on-size"),
        (without_a_tensor, {}, "optimizer-of-other-model"),
        (lambda width: (net(width), "adamw"), {}, "wrong-type"),
        (lambda width: (net(width), None, None), {}, "wrong-type"),
        (groups_with(), {"optimizer": "sgd"}, "optimizer-given-twice"),
    ],
)
def test_mistakes(build, options, code):
    with refuses(code):
        o1.sweep(build, {"lr": [1e-2]}, **CALL | options)
