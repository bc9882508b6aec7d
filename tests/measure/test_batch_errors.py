"""Batches that do not fit the model: every verb names the argument, the batch and torch's error."""

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1

SIZES = [8, 16, 32]
X = torch.randn(16, 8)
Y = torch.randint(3, (16,))
IDS = torch.randint(16, (2, 8))


def classifier(width):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))


class Tokens(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, 16)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.hidden(self.embedding(input_ids)).relu())
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def plan(build, batch):
    o1.plan(build(16), base=build(8), lr=0.01, inputs=batch)


def coord_check(build, batch):
    o1.coord_check(build, widths=SIZES, batches=batch, steps=1, seeds=1)


def alignment(build, batch):
    o1.alignment(build, widths=SIZES, batches=batch, steps=1, seeds=1)


def stacked_sweep(build, batch):
    o1.sweep(build, {"lr": [0.01, 0.02]}, widths=SIZES, data=batch, steps=2, device="cpu")


def sweep(build, batch):
    o1.sweep(build, {"lr": 0.01}, widths=SIZES, data=batch, steps=2, device="cpu", stacked=False)


def train(build, batch):
    made = o1.plan(build(16), base=build(8), lr=0.01)
    made.apply()
    o1.train(made, batch, steps=1, device="cpu")


def probe(build, batch):
    with o1.probe(build(16), batch=batch):
        pass


def measure_start(build, batch):
    made = o1.plan(build(16), base=build(8), lr=0.01)
    made.apply()
    made.measure_start(batch)


TRAINING = [
    (coord_check, "batches"),
    (alignment, "batches"),
    (stacked_sweep, "data"),
    (sweep, "data"),
    (train, "data"),
]
INPUTS_ONLY = [(plan, "inputs"), (probe, "batch"), (measure_start, "inputs")]


@pytest.mark.parametrize(("verb", "argument"), TRAINING)
@pytest.mark.parametrize(
    ("batch", "contents"),
    [
        ((torch.randn(16, 9), Y), "inputs float32 (16, 9), targets int64 (16,)"),
        ((X.long(), Y), "inputs int64 (16, 8)"),
        ((X, torch.randint(3, (17,))), "targets int64 (17,)"),
        ((X, Y + 7), "values 7 to 9"),
        ((X, torch.randn(16)), "targets float32 (16,)"),
    ],
    ids=["shape", "type", "rows", "classes", "numbers"],
)
def test_a_pair_that_does_not_fit(verb, argument, batch, contents):
    with refuses("batch-not-accepted", argument=argument) as caught:
        verb(classifier, batch)
    assert str(caught.value).startswith(f"{argument}: ")
    assert contents in str(caught.value)
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in str(caught.value)


@pytest.mark.parametrize(("verb", "argument"), TRAINING + INPUTS_ONLY)
@pytest.mark.parametrize(
    ("batch", "contents"),
    [
        ({"input_ids": IDS, "labels": IDS, "weights": torch.ones(2)}, "weights: float32 (2,)"),
        ({"input_ids": IDS + 16, "labels": IDS}, "input_ids: int64 (2, 8) with values"),
        ({"input_ids": IDS.float(), "labels": IDS}, "input_ids: float32 (2, 8)"),
    ],
    ids=["key", "index", "type"],
)
def test_keywords_that_do_not_fit(verb, argument, batch, contents):
    with refuses("batch-not-accepted", argument=argument) as caught:
        verb(Tokens, batch)
    assert contents in str(caught.value)
    assert ("input_ids, labels" in str(caught.value)) == ("weights" in batch)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(("verb", "argument"), TRAINING)
def test_a_batch_without_labels(verb, argument):
    with refuses("needs-loss", argument="loss"):
        verb(Tokens, {"input_ids": IDS})


class LikeNanoGPT(nn.Module):
    """Logits of the last token alone without targets, and a pair of logits and loss with them."""

    def __init__(self, width: int):
        super().__init__()
        tokens = Tokens(width)
        self.embedding, self.hidden, self.head = tokens.embedding, tokens.hidden, tokens.head

    def forward(self, idx, targets=None):
        logits = self.head(self.hidden(self.embedding(idx)).relu())
        if targets is None:
            return logits[:, [-1]], None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(("verb", "argument"), TRAINING)
def test_a_model_that_computes_its_own_loss_says_how_to_pass_targets(verb, argument):
    with refuses("needs-loss", argument="loss") as caught:
        verb(LikeNanoGPT, (IDS, IDS))
    assert "{'idx': inputs, 'targets': targets}" in str(caught.value)
    verb(LikeNanoGPT, {"idx": IDS, "targets": IDS})


def test_a_pair_is_no_example_batch():
    with refuses("batch-not-accepted", argument="inputs"):
        plan(classifier, (X, Y))


def test_held_out_data_that_do_not_fit_are_named():
    made = o1.plan(classifier(16), base=classifier(8), lr=0.01)
    made.apply()
    with refuses("batch-not-accepted", argument="held_out"):
        o1.train(made, (X, Y), steps=1, device="cpu", held_out=[(torch.randn(16, 9), Y)])


class Full(nn.Sequential):
    def forward(self, input):
        raise torch.OutOfMemoryError("no memory")


def test_other_errors_are_not_taken_for_errors_of_the_batch():
    model = Full(*classifier(8))
    with pytest.raises(torch.OutOfMemoryError), o1.probe(model, batch=X):
        pass


def test_models_that_accept_the_batch_are_trained():
    def build(width, features):
        return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 3))

    space = {"lr": 0.01, "features": [9, 8]}
    swept = o1.sweep(build, space, widths=[8], data=(X, Y), steps=2, device="cpu")
    assert swept.frame.set_index("features")["status"].to_dict() == {8: "done", 9: "failed"}
    (error,) = swept.frame["error"].dropna()
    assert "batch-not-accepted" in error
