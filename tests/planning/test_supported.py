"""Models and optimizers that are refused, with a code instead of an error of torch."""

import pytest
import torch
from support.architectures import ARCHITECTURES
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1
from orderone.planning.plan import fused_options

NUMBERS = (torch.randn(8, 16), torch.arange(8))
TOKENS = (torch.arange(8)[:, None].expand(8, 4), torch.arange(8))
SIZES = (16, 32, 64)


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 8))


class Words(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.table = nn.Embedding(8, width, sparse=True)
        self.out = nn.Linear(width, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids).mean(1))


class PartlyScripted(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.second = torch.jit.script(nn.Linear(width, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def scripted(width: int) -> nn.Module:
    return torch.jit.script(net(width))


def with_lbfgs(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net(width)
    return model, torch.optim.LBFGS(model.parameters())


def check(build, batch=NUMBERS, **options):
    return o1.coord_check(build, widths=SIZES, batches=batch, seeds=1, lr=1e-2, **options)


def sweep(build, batch=NUMBERS, **options):
    space = {"lr": [1e-2]}
    return o1.sweep(build, widths=SIZES[:2], space=space, data=batch, steps=2, **options)


def test_an_optimizer_with_a_closure_is_refused():
    with refuses("needs-closure", argument="optimizer"):
        o1.plan(net(32), base=net(16), optimizer=torch.optim.LBFGS)
    with refuses("needs-closure", argument="optimizer"):
        check(with_lbfgs)
    with refuses("needs-closure", argument="optimizer"):
        sweep(with_lbfgs)
    model, optimizer = with_lbfgs(16)
    with refuses("needs-closure", argument="optimizer"):
        o1.train(model, NUMBERS, steps=1, optimizer=optimizer)


def test_sparse_gradients_are_refused_where_the_optimizer_does_not_take_them():
    with refuses("sparse-gradients", argument="model"):
        o1.plan(Words(32), base=Words(16), optimizer="adamw")
    with refuses("sparse-gradients", argument="model"):
        check(Words, TOKENS)
    with refuses("sparse-gradients", argument="model"):
        sweep(Words, TOKENS)
    model = Words(16)
    with refuses("sparse-gradients", argument="model"):
        o1.train(
            model,
            TOKENS,
            steps=1,
            optimizer=torch.optim.Adam(model.parameters()),
        )


def test_sgd_takes_sparse_gradients():
    plan = o1.plan(Words(32), base=Words(16), optimizer="sgd", lr=0.1)
    assert fused_options(plan) == {}
    assert check(Words, TOKENS, optimizer="sgd").frame.finite.all()


def test_a_frozen_sparse_table_has_no_gradients():
    model, base = Words(32), Words(16)
    for table in (model.table, base.table):
        table.weight.requires_grad_(False)
    o1.plan(model, base=base, optimizer="adamw")


def test_a_scripted_model_is_refused():
    with refuses("scripted-model", argument="model"):
        o1.plan(scripted(32), base=scripted(16))
    with refuses("scripted-model", argument="model"):
        check(scripted)
    with refuses("scripted-model", argument="model"):
        sweep(scripted)
    with refuses("scripted-model", argument="model"):
        check(PartlyScripted)


@pytest.mark.parametrize("optimizer", ["lion", "adafactor"])
def test_complex_weights_are_refused_where_the_optimizer_does_not_take_them(optimizer):
    fno = ARCHITECTURES["fno"]
    with refuses("complex-tensors", argument="optimizer"):
        fno.plan(32, 16, optimizer)
    with refuses("complex-tensors", argument="optimizer"):
        sweep(fno.build, fno.batch, optimizer=optimizer)


def test_complex_weights_are_trained_without_fused_kernels():
    fno = ARCHITECTURES["fno"]
    assert fused_options(fno.plan(32, 16, "adam")) == {}
    assert fno.check("adam", widths=SIZES, seeds=1).frame.finite.all()
    assert sweep(fno.build, fno.batch, optimizer="adam").frame.loss.notna().all()


def test_muon_leaves_complex_matrices_to_adamw():
    class Net(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.first = nn.Linear(16, width)
            self.mix = nn.Parameter(torch.randn(width, width, dtype=torch.cfloat))
            self.last = nn.Linear(width, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((self.first(x).to(torch.cfloat) @ self.mix).real)

    plan = o1.plan(Net(32), base=Net(16), inputs=NUMBERS[0], optimizer="muon", lr=1e-2)
    assert plan["mix"].role == "hidden"
    assert plan["mix"].optimizer == "adamw"


class _ComplexMiddle(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.middle = nn.Linear(width, width, dtype=torch.complex64)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.middle(self.first(x).to(torch.complex64)).real)


def test_sizes_of_complex_tensors_count_both_parts():
    """torch warns if a complex tensor is cast to real numbers, which halves its mean square."""
    plan = o1.plan(_ComplexMiddle(64), base=_ComplexMiddle(16), lr=1.0, inputs=torch.randn(8, 6))
    assert plan["middle.weight"].factors.lr == 0.25
    assert not [note for note in plan.notes if "unexpected" in note]
