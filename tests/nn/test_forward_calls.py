"""Activations that shaping cannot reach are errors; those of users are found by trial."""

from functools import partial
from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.nn import functional as F  # noqa: N812

from orderone.nn import ShapedActivation, ShapedReLU, shape_activations


def swish(x):
    return x * torch.sigmoid(x)


def renamed(x):
    activation = F.mish
    return activation(x)


class Block(nn.Module):
    """A layer with an activation that can be replaced."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.linear(x))


class Functional(Block):
    def forward(self, x):
        return F.relu(self.relu(self.linear(x)))


class Method(Block):
    def forward(self, x):
        return self.relu(self.linear(x)).tanh()


class Helper(Block):
    def forward(self, x):
        return swish(super().forward(x))


class Renamed(Block):
    def forward(self, x):
        return renamed(super().forward(x))


class Inherited(Functional):
    def forward(self, x):
        return super().forward(x) + 1


class OwnMethod(Block):
    def activate(self, x):
        return torch.relu_(x)

    def forward(self, x):
        return self.activate(super().forward(x))


class Imported(Block):
    def forward(self, x):
        import torch.nn.functional as functional

        return functional.gelu(super().forward(x))


class Listed(Block):
    def forward(self, x):
        return torch.stack([F.elu(row) for row in super().forward(x)])


class Contained(Block):
    def __init__(self):
        super().__init__()
        self.table = {"silu": F.silu}

    def forward(self, x):
        return self.table["silu"](super().forward(x))


class Trained(nn.Module):
    """A swish whose slope is trained, one per channel."""

    def __init__(self, channels):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x * torch.sigmoid(self.beta.view(1, -1, 1, 1) * x)


class Squared(nn.ReLU):
    """A subclass with other code: no ReLU."""

    def forward(self, x):  # type: ignore[override]
        return super().forward(x) ** 2 + x


class Loop(nn.Module):
    """`block.relu` is a module here, and no method of a tensor."""

    def __init__(self):
        super().__init__()
        self.blocks: Any = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block.relu(block.linear(x))
        return x


class Norm(nn.Module):
    def forward(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt()


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * (torch.rand(len(x)) < 0.9).to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


CALLS = {
    Functional: "relu",
    Method: "tanh",
    Helper: "sigmoid",
    Renamed: "mish",
    Inherited: "relu",
    OwnMethod: "relu_",
    Imported: "gelu",
    Listed: "elu",
    Contained: "silu",
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("method", ["shaped", "dks"])
def test_calls_in_forward_are_refused(kind, method):
    model = nn.Sequential(Block(), kind())
    with refuses("functions-in-forward", argument="model") as caught:
        shape_activations(model, depth=8, method=method)
    assert f"calls {CALLS[kind]}" in str(caught.value)
    assert "keep=['1']" in str(caught.value)
    assert all(type(block.relu) is nn.ReLU for block in model)  # nothing was replaced
    with shape_activations(model, depth=8, method=method, keep=["1"]) as shaping:
        assert set(shaping.replaced) == {"0.relu", "1.relu"}


def test_names_of_modules_are_no_methods():
    with shape_activations(Loop(), depth=2) as shaping:
        assert set(shaping.replaced) == {"blocks.0.relu", "blocks.1.relu"}


@pytest.mark.parametrize(
    "activation", [swish, partial(F.leaky_relu, negative_slope=0.1), torch.sin, lambda x: x.tanh()]
)
def test_functions_of_users_are_found(activation):
    model: Any = Block()
    model.other = activation
    with shape_activations(model, depth=4) as shaping:
        assert set(shaping.replaced) == {"relu", "other"}
        kind = ShapedReLU if isinstance(activation, partial) else ShapedActivation
        assert isinstance(model.other, kind)
    assert model.other is activation


def test_modules_of_users_are_tried():
    class Swish(nn.Module):
        def forward(self, x):
            return swish(x)

    others = [Norm(), DropPath(), nn.LayerNorm(4), nn.Dropout(0.5), nn.Softmax(-1), nn.Identity()]
    model = nn.Sequential(nn.Linear(4, 4), Swish(), *others)
    state = torch.get_rng_state()
    with shape_activations(model, depth=4) as shaping:
        assert list(shaping.replaced) == ["1"]
    assert torch.equal(state, torch.get_rng_state())
    squared = nn.Sequential(nn.Linear(4, 4), Squared())
    with shape_activations(squared, depth=4):
        assert isinstance(squared[1], ShapedActivation)  # smooth at 0
    for wrong in (Trained(1), Trained(7), nn.PReLU(), nn.GLU(), nn.LSTM(4, 4), nn.GRUCell(4, 4)):
        with refuses("no-shaped-form", argument="model"):
            shape_activations(nn.Sequential(Block(), wrong), depth=4)
        shape_activations(nn.Sequential(Block(), wrong), depth=4, keep=["1"])


def test_a_module_at_two_places():
    relu = nn.ReLU()
    model = nn.Sequential(Block(), Block(), relu)
    model[0].relu = model[1].relu = relu
    with shape_activations(model, depth=3, method="dks") as shaping:
        assert set(shaping.replaced) == {"0.relu", "1.relu", "2"}
        torch.testing.assert_close(model[0].relu(torch.ones(2)), model[2](torch.ones(2)))
    assert model[0].relu is model[1].relu is model[2] is relu


def test_scripted_models_are_refused():
    # torch 2.15 has made the DeprecationWarning a FutureWarning
    with pytest.warns((DeprecationWarning, FutureWarning), match="jit"):
        scripted: Any = torch.jit.trace(Block(), torch.ones(2, 4))
    with refuses("invalid-argument", argument="model"):
        shape_activations(scripted, depth=2)


@pytest.mark.parametrize("method", ["shaped", "dks", "tat"])
def test_hugging_face_models(method):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes))
    with shape_activations(bert, depth=2, method=method) as shaping:
        assert len(shaping.replaced) == 3  # with the pooler's
        assert torch.isfinite(bert(torch.ones(1, 3, dtype=torch.long)).last_hidden_state).all()
    vit = transformers.ViTModel(
        transformers.ViTConfig(image_size=8, patch_size=4, **sizes), add_pooling_layer=False
    )
    with shape_activations(vit, depth=2, method=method) as shaping:
        assert len(shaping.replaced) == 2
    mamba = transformers.MambaModel(
        transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=20)
    )
    with refuses("functions-in-forward", argument="model"):
        shape_activations(mamba, depth=2, method=method)
