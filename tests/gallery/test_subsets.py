"""Parts of data sets: files are written once and read as tasks."""

import pytest
import torch
from support.errors import refuses

from orderone.data.vision.arrays import Arrays
from orderone.gallery import subsets


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Sets of 40 and 20 images whose first pixel is their number, and two tiny corpora."""

    def images(root):
        return tuple(
            Arrays(
                torch.arange(n).to(torch.uint8).view(n, 1, 1, 1).repeat(1, 1, 2, 2),
                torch.arange(n) % 10,
            )
            for n in (40, 20)
        )

    monkeypatch.setattr(subsets, "SETS", {"mnist": images, "cifar10": images})
    monkeypatch.setattr(subsets, "SIZES", {"mnist": (12, 4), "cifar10": (10, 2)})
    monkeypatch.setattr(
        subsets, "read_corpus", lambda name, root: f"{name} one. Two words! Three?".encode()
    )
    monkeypatch.setattr(subsets, "encode_pieces", _letters)
    return tmp_path


def _letters(pieces, tokenizer, root, cache):
    lengths = torch.tensor([len(piece) for piece in pieces])
    return (
        torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8).int() + 50_000,
        lengths,
        50_257,
    )


def test_a_part_of_the_images_with_their_labels(root):
    assert [path.name for path in subsets.write(root)] == [
        "mnist.safetensors",
        "cifar10.safetensors",
        "tokens.safetensors",
    ]
    train, held = subsets.image_subset("mnist", root)
    assert (len(train), len(held)) == (12, 4)
    numbers = train.images[:, 0, 0, 0].long()
    assert len(set(numbers.tolist())) == 12
    assert torch.equal(numbers % 10, train.labels)


def test_sentences_of_any_length_with_large_tokens(root):
    list(subsets.write(root))
    sentences, vocab = subsets.sentence_subset(100, root)
    assert vocab == 50_257
    assert sentences.tokens.max() > 50_000
    assert (
        bytes((sentences.tokens - 50_000).tolist())
        == b"gutenberg one. Two words! Three?sotu one. Two words! Three?"
    )
    assert subsets.sentence_subset(4, root)[0].starts.diff().max() == 4


@pytest.mark.parametrize(
    "read",
    [
        lambda root: subsets.image_subset("cifar10", root),
        lambda root: subsets.sentence_subset(9, root),
    ],
)
def test_the_error_about_missing_files_names_the_command(read, tmp_path):
    with refuses("missing-data", argument="root") as caught:
        read(tmp_path)
    assert f"python -m orderone.gallery.subsets {tmp_path}" in str(caught.value)


def test_an_unknown_data_set_is_an_error(tmp_path):
    with refuses("unknown-name", argument="subset") as caught:
        subsets.image_subset("imagenet", tmp_path)
    assert "cifar10" in str(caught.value)
