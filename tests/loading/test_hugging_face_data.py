"""Data sets of Hugging Face `datasets`, or objects that look like them."""

# pyright: reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false

import pytest
import torch
from torch import nn

import orderone as o1
from orderone.training.source import read_source

ROWS = {"x": [[float(i), 1.0] for i in range(12)], "label": [i % 2 for i in range(12)]}


def collate(rows):
    return torch.tensor([row["x"] for row in rows]), torch.tensor([row["label"] for row in rows])


class LooksLikeOne:
    """The part of `datasets.Dataset` that is used; `batch` is a method of it too."""

    column_names = ("x", "label")

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {name: values[index] for name, values in ROWS.items()}

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def batch(self, batch_size):
        raise AssertionError


def real_one():
    return pytest.importorskip("datasets").Dataset.from_dict(ROWS)


def real_stream():
    return real_one().to_iterable_dataset()


@pytest.mark.parametrize("make", [LooksLikeOne, real_one, real_stream])
def test_a_data_set_with_a_collator(make):
    source = read_source(make(), 4, collate)
    epoch = torch.cat([source.at(step, 0)[0][:, 0] for step in range(3)])
    assert sorted(epoch.tolist()) == list(range(12))
    assert read_source(make(), 4, collate).name == source.name
    swept = o1.sweep(
        lambda width: nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2)),
        {"lr": [1e-2], "seed": [0, 1]},
        widths=[4],
        data=make(),
        batch_size=4,
        collate_fn=collate,
        steps=4,
        stacked=True,
        device="cpu",
        progress=False,
    )
    assert (swept.frame["status"] == "done").all()


def test_labels_in_a_dict_give_the_loss_of_the_model():
    from orderone.cli.models import gpt2

    pytest.importorskip("transformers")
    ids = torch.randint(0, 16, (12, 6))

    def rows(samples):
        tokens = torch.stack(samples)
        return {"input_ids": tokens, "labels": tokens}

    plan = o1.plan(gpt2(32, vocab=16), base=gpt2(16, vocab=16), lr=1e-2)
    trained = o1.train(plan, list(ids.split(4)), 2, device="cpu", loss=_next_token)
    from torch.utils.data import TensorDataset

    data = TensorDataset(ids)
    again = o1.train(
        o1.plan(gpt2(32, vocab=16), base=gpt2(16, vocab=16), lr=1e-2),
        data,
        2,
        batch_size=4,
        collate_fn=lambda samples: rows([sample[0] for sample in samples]),
        device="cpu",
    )
    assert len(trained.losses) == len(again.losses) == 2


def _next_token(output, batch):
    return nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
