"""A model that writes a file has state that no checkpoint holds: it is named."""

import logging
import os
import sqlite3
import tempfile
import types
import warnings
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
import torch
from support.sweep_subjects import batch, mlp
from torch import nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.training.source import Source
from orderone.training.written_files import written_files

STEPS = 4


class Writing(nn.Module):
    """Model that calls `write` in every pass of training."""

    write: Callable[[torch.Tensor], object]

    def __init__(self, width, write):
        super().__init__()
        self.inner = mlp(width)
        vars(self)["write"] = types.MethodType(write, self)

    def forward(self, x):
        y = self.inner(x)
        if self.training:
            self.write(y)
        return y


def text(path):
    def write(model, y):
        with path.open("a") as stream:
            stream.write("x")

    return write


def array(path):
    return lambda model, y: np.save(path, y.detach().numpy())


def database(path):
    def write(model, y):
        with closing(sqlite3.connect(path)) as opened:
            opened.execute("CREATE TABLE IF NOT EXISTS calls (number INTEGER)")

    return write


def renamed(path):
    def write(model, y):
        torch.save(y.detach(), path.with_name("new"))
        path.with_name("new").rename(path)

    return write


def only_read(path):
    path.write_text("1")
    return lambda model, y: path.read_text()


def removed(path):
    def write(model, y):
        with tempfile.TemporaryFile(dir=path.parent) as stream:
            stream.write(b"x")

    return write


WRITES = [text, array, database, renamed]
OTHERS = [only_read, removed]


def train(build, folder, data=batch):
    torch.manual_seed(0)
    model = build(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"optimizer": optimizer, "device": "cpu", "checkpoint": folder / "run.safetensors"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        o1.train(model, Source("signs", data), STEPS, **given)
    return {code_of(str(w.message)): str(w.message) for w in caught}


@pytest.mark.parametrize("make", [*WRITES, *OTHERS])
def test_train_names_a_file_that_the_model_writes(tmp_path, make):
    path = tmp_path / "calls.npy"
    write = make(path)
    caught = train(lambda width: Writing(width, write), tmp_path)
    if make in OTHERS:
        assert not caught
    else:
        assert str(path) in caught.pop("state-may-be-lost")
        assert not caught


def test_a_log_that_was_opened_before_is_no_state(tmp_path):
    logger = logging.Logger("model")
    with closing(logging.FileHandler(tmp_path / "log.txt")) as handler:
        logger.addHandler(handler)
        write = lambda model, y: logger.warning("pass")  # noqa: E731
        assert not train(lambda width: Writing(width, write), tmp_path)


def test_files_of_the_data_are_no_state(tmp_path):
    def data(step, seed):
        (tmp_path / "cache.txt").write_text(str(step))
        return batch(step, seed)

    assert not train(mlp, tmp_path, data)


@pytest.mark.parametrize("stacked", [False, "auto"])
def test_a_sweep_names_it_and_saves_no_running_trial(tmp_path, stacked):
    path = tmp_path / "calls.txt"
    path.write_text("")
    settings = {"widths": [8], "base": 8, "data": batch, "steps": STEPS, "device": "cpu"}
    settings |= {"store": tmp_path / "runs.db", "stacked": stacked, "name": "net"}
    settings |= {"checkpoint_seconds": 0.0}
    space = {"lr": [0.1], "seed": range(2)}
    with pytest.warns(UserWarning, match=path.name) as caught:
        o1.sweep(lambda w: Writing(w, text(path)), space, progress=False, **settings)
    assert {code_of(str(w.message)) for w in caught} == {"checkpoint-not-written"}


def test_an_error_of_the_hook_is_no_error_of_the_model(tmp_path, monkeypatch):
    path = tmp_path / "a"

    def removed_folder():
        raise FileNotFoundError

    with written_files() as files:
        with monkeypatch.context() as patch, closing(sqlite3.connect(":memory:")):
            patch.setattr(os, "getcwd", removed_folder)
            sqlite3.connect(":memory:").close()
        path.write_text("x")
    assert files == [str(path)]
    path.with_name("b").write_text("x")
    assert files == [str(path)]
