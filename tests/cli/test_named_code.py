"""Python code that options name: wrong forms point to the right one."""

import json

import pytest
from support.command_line import assert_refused, orderone

MINE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x[:, 0] > 0).long())
loader = DataLoader(data, batch_size=8, shuffle=True)

def build(width, depth=1):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), *hidden, nn.Linear(width, 2))

def with_optimizer(width):
    model = build(width)
    return model, torch.optim.SGD(model.parameters(), lr=0.25)

class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(*build(width))

class Heads(nn.Module):
    def __init__(self, width, heads):
        super().__init__()

class Config:
    pass

def needs_heads(width, heads):
    return build(width)

def nothing():
    return build(8)

model = build(8)
"""
SWEEP = ("sweep", "--widths", "8:16", "--steps", "2", "--lr", "1e-2", "--seeds", "1")
CHECK = ("check", "--widths", "8:16", "--steps", "1", "--seeds", "2")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "forms_of_code.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


PLACES = (
    ("forms_of_code", "wrong-name-of-code", "package.module:function"),
    ("forms_of_code.build", "wrong-name-of-code", "write forms_of_code:build"),
    ("forms_of_code.py", "wrong-name-of-code", "write forms_of_code:function"),
    ("forms_of_code.py:build", "wrong-name-of-code", "write forms_of_code:build"),
    ("./forms_of_code.py:build", "wrong-name-of-code", "write forms_of_code:build"),
    ("models/gpt.py:build", "wrong-name-of-code", "write models.gpt:build"),
    ("forms_of_code:build()", "wrong-name-of-code", "write forms_of_code:build"),
    ("forms_of_code:bild", "cannot-import", " forms_of_code:build?"),
    ("forms_of_code:xyz", "cannot-import", "build, with_optimizer"),
    ("form_of_code:build", "cannot-import", "form_of_code"),
    ("forms_of_code:model", "not-a-builder", "it is a model"),
    ("forms_of_code:Config", "not-a-builder", "the class Config"),
    ("forms_of_code:needs_heads", "build-arguments", "heads"),
    ("forms_of_code:Heads", "build-arguments", "heads"),
    ("forms_of_code:nothing", "build-arguments", ""),
)


@pytest.mark.parametrize(("builder", "code", "words"), PLACES)
@pytest.mark.parametrize("verb", ["plan", "check", "sweep"])
def test_a_wrong_form_points_to_the_right_one(verb, builder, code, words):
    options = {
        "plan": ("plan", "--size", "16", "--base", "8"),
        "check": (*CHECK, "--data", "forms_of_code:loader"),
        "sweep": (*SWEEP, "--data", "forms_of_code:loader"),
    }
    result = orderone(*options[verb], "--builder", builder)
    assert_refused(result, code, words)


@pytest.mark.parametrize("verb", ["plan", "check", "sweep"])
def test_a_model_without_an_option_points_to_builder(verb):
    for words in (["forms_of_code:build"], ["--lr", "1e-2", "forms_of_code:build"]):
        result = orderone(verb, *words)
        assert_refused(result, "option-expected", f"orderone {verb} --builder forms_of_code:build")


def test_a_plan_of_a_model_of_the_user():
    size = ("--size", "width=32", "--base", "width=8", "--json")
    for builder in ("build", "with_optimizer", "Net"):
        ended = orderone("plan", "--builder", f"forms_of_code:{builder}", *size)
        assert ended.status == 0, ended.err
        settings = json.loads(ended.out)["settings"]
        assert settings["optimizer"] == ("sgd" if builder == "with_optimizer" else "adamw")
        assert builder != "with_optimizer" or settings["lr"] == 0.25
    own = ("--builder", "forms_of_code:build")
    assert_refused(orderone("plan", *own, "--base", "8"), "needs-another-option", "--size")
    assert_refused(orderone("plan", *own, "--size", "8"), "needs-base", "base")
    assert_refused(orderone("plan", "--base", "8"), "needs-another-option", "--builder")


def test_data_sets_and_loaders_by_name():
    own = ("--builder", "forms_of_code:build")
    for data in (("loader",), ("data", "--batch", "4")):
        words = ("--data", f"forms_of_code:{data[0]}", *data[1:], "--json")
        ended = orderone(*CHECK, *own, *words)
        assert ended.status in (0, 1, 3), ended.err
        store = ("--store", f"{data[0]}.db", "--device", "cpu")
        ended = orderone(*SWEEP, *own, *words, *store)
        assert json.loads(ended.out)["ran"] == 2, ended.err
    result = orderone(*CHECK, *own, "--data", "forms_of_code:data")
    assert_refused(result, "data-needs-batch-size", "batch_size")
