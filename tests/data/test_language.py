"""Language modelling: the target is the next token, batches are reproducible, and training never
uses held-out text."""

import json
import lzma
import pickle
from hashlib import sha256

import pytest
import torch
from support.errors import refuses

from orderone import data
from orderone.core.errors import InputError
from orderone.data import linux
from orderone.data.corpus import read_corpus
from orderone.data.draws import Draws
from orderone.data.missing import MissingDataError

TEXT = bytes(range(256)) * 40


def test_the_target_is_the_next_token():
    inputs, targets = data.language(TEXT, batch=4, length=32).batch(0, 0)
    assert inputs.shape == targets.shape == (4, 32)
    assert inputs.dtype == targets.dtype == torch.int64
    assert (
        (inputs + 1) % 256 == targets
    ).float().mean() > 0.9  # not where a held-out part was cut out


def test_hugging_face_batches_have_equal_inputs_and_labels():
    task = data.language(TEXT, batch=4, length=32, format="huggingface")
    batch = task.batch(0, 0)
    assert batch["input_ids"].shape == (4, 32)
    assert torch.equal(batch["input_ids"], batch["labels"])


@pytest.mark.parametrize("format", ["pairs", "huggingface"])
def test_batches_depend_on_step_and_seed_alone(format):
    task, again = (data.language(TEXT, batch=3, length=8, format=format) for _ in range(2))
    leaves = lambda batch: list(batch.values()) if isinstance(batch, dict) else list(batch)  # noqa: E731
    first = {(step, seed): leaves(task.batch(step, seed)) for step in range(3) for seed in range(3)}
    for (step, seed), batch in reversed(first.items()):
        assert all(map(torch.equal, batch, leaves(again.batch(step, seed))))
    assert len({tuple(batch[0].flatten().tolist()) for batch in first.values()}) == 9
    stacked = leaves(task.stacked(2, [2, 0, 1]))
    for leaf, parts in zip(
        stacked, zip(*(first[2, seed] for seed in (2, 0, 1)), strict=True), strict=True
    ):
        assert torch.equal(leaf, torch.stack(parts))


def test_training_never_uses_held_out_text():
    task = data.language(torch.arange(100_000), batch=8, length=16, held_out=0.1)
    held = set(torch.cat([torch.cat(batch) for batch in task.evaluation()]).flatten().tolist())
    assert not held & set(task.tokens.tolist())
    assert len(task.tokens) == pytest.approx(90_000, abs=16)
    assert max(held) - min(held) > 90_000  # spread over the whole text
    assert sum(len(batch[0]) for batch in task.evaluation()) == 64


def test_no_evaluation_if_nothing_is_held_out():
    task = data.language(TEXT, held_out=0)
    assert task.evaluation() == []
    assert len(task.tokens) == len(TEXT)


def test_names_tell_tasks_apart():
    tasks = [
        data.language(TEXT),
        data.language(TEXT[1:]),
        data.language(TEXT, batch=8),
        data.language(TEXT, length=8),
        data.language(TEXT, format="huggingface"),
        data.language(TEXT, held_out=0.1),
    ]
    assert len({task.name for task in tasks}) == len(tasks)
    assert data.language(TEXT).name == tasks[0].name
    assert all(isinstance(task, data.StackedTask) for task in tasks)


def test_pieces_start_everywhere_with_equal_probability():
    task = data.language(torch.arange(10_000), batch=1000, length=1, held_out=0)
    starts = torch.cat([task.batch(step, 0)[0].flatten() for step in range(50)])
    counts = torch.histc(starts.float(), 20, 0, 10_000)
    assert (
        (counts - 2500) ** 2 / 2500
    ).sum() < 43.8  # chi-squared of 19 degrees of freedom, 1 in 1000


def test_the_default_text_needs_no_download():
    task = data.language()
    assert task.vocab == 256
    assert len(task.tokens) > 5_000_000
    assert 0 < len(task.evaluation()) <= 8


def test_files_and_folders_are_read_in_order(tmp_path):
    (tmp_path / "b.txt").write_bytes("é".encode("latin-1") * 300)
    (tmp_path / "a.txt").write_text("a\r\n" * 300)
    expected = b"a\n" * 300 + b"\n\n" + "é".encode() * 300
    for source in (tmp_path, str(tmp_path), [tmp_path / "a.txt", tmp_path / "b.txt"]):
        assert bytes(data.language(source, length=4, held_out=0).tokens.tolist()) == expected


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "word"),
    [
        ({"source": 3}, "wrong-type", "source", "'python'"),
        ({"source": b""}, "invalid-argument", "source", "empty"),
        ({"source": b"short"}, "too-little-text", "source", "129"),
        ({"source": torch.zeros(2, 2)}, "invalid-argument", "source", "(2, 2)"),
        ({"source": torch.tensor([-1, 2])}, "invalid-argument", "source", "-1"),
        ({"source": TEXT, "tokenizer": 7}, "invalid-argument", "tokenizer", "'gpt2'"),
        ({"source": TEXT, "tokenizer": "gpt5"}, "invalid-argument", "tokenizer", "'gpt5'"),
        ({"source": TEXT, "device": "nowhere"}, "invalid-argument", "device", "'cpu'"),
        ({"source": TEXT, "format": "hf"}, "unknown-name", "format", "'hf'"),
        ({"source": TEXT, "root": 4, "tokenizer": "gpt2"}, "wrong-type", "root", "4"),
    ],
)
def test_errors_name_the_argument(arguments, code, argument, word):
    with refuses(code, argument=argument) as caught:
        data.language(**arguments)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": torch.arange(900), "vocab": 7}, "^vocab: .*900 or more"),
        ({"source": TEXT, "batch": 0}, "^batch: .*1 or more"),
        ({"source": TEXT, "length": 1.5}, "^length: .*1.5"),
        ({"source": TEXT, "evaluations": -1}, "^evaluations: .*-1"),
        ({"source": TEXT, "held_out": 1}, "^held_out: "),
    ],
)
def test_errors_about_numbers_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.language(**arguments)


def test_reviews_are_one_text_in_shuffled_order(tmp_path):
    reviews = [{"t": f"Film {k}.<br />Good\u00e9.", "s": k % 2} for k in range(50)]
    (tmp_path / "reviews.json").write_text(json.dumps(reviews))
    corpus = read_corpus("imdb", tmp_path)
    texts = corpus.decode().split("\n\n")
    assert sorted(texts) == sorted(f"Film {k}.\nGood\u00e9." for k in range(50))
    assert texts != [f"Film {k}.\nGood\u00e9." for k in range(50)]
    assert corpus == read_corpus("imdb", tmp_path)


@pytest.mark.parametrize("content", ["[1, 2]", "not json", '[{"text": "Film"}]', "3"])
def test_a_damaged_file_of_reviews_is_named(tmp_path, content):
    (tmp_path / "reviews.json").write_text(content)
    with refuses("damaged-file", argument="source") as caught:
        read_corpus("imdb", tmp_path)
    assert "reviews.json" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sotu", {"source": "sotu"}),
        ("imdb", {"source": "imdb"}),
        ("gpt2", {"source": TEXT, "tokenizer": "gpt2"}),
    ],
)
def test_missing_data_names_the_folder_and_the_command(name, arguments, tmp_path):
    with refuses("missing-data", argument="root") as caught:
        data.language(**arguments, root=tmp_path)
    assert isinstance(caught.value, FileNotFoundError)
    assert str(tmp_path) in str(caught.value)
    assert f"python -m orderone.data.fetch {name}`" in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with refuses("missing-data", argument="source") as caught:
        data.language(tmp_path / "nothing.txt")
    assert str(tmp_path / "nothing.txt") in str(caught.value)
    with refuses("missing-data", argument="source") as caught:
        data.language(tmp_path)
    assert f".txt files in {tmp_path}" in str(caught.value)


def test_an_error_about_missing_data_survives_pickling(tmp_path):
    with refuses("missing-data") as caught:
        data.language(tmp_path)
    copy: MissingDataError = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, FileNotFoundError)
    assert (str(copy), copy.code) == (str(caught.value), "missing-data")


class TestDraws:
    def test_draws_are_splitmix64(self):
        """Compare with the published generator, written again in plain Python."""
        draws, state = Draws([1234567], 0), None
        key = draws.keys[0]
        mask = 2**64 - 1

        def mix(z):
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
            return z ^ (z >> 31)

        from zlib import crc32

        state, expected = mix(key + crc32(b"x")), []
        for _ in range(5):
            state = (state + 0x9E3779B97F4A7C15) & mask
            expected.append(mix(state))
        assert [x % 2**64 for x in draws.bits("x", 5)[0].tolist()] == expected

    def test_the_finaliser_gives_the_known_first_output(self):
        """Published test vector: SplitMix64 seeded with 1234567 starts with 6457827717110365317."""
        from orderone.data.draws import _GOLDEN, _mix

        assert _mix(1234567 + _GOLDEN) == 6457827717110365317

    def test_uniform_and_normal_have_their_moments(self):
        draws = Draws(range(100), 5)
        u, x = draws.uniform("u", 1000), draws.normal("x", 1000)
        assert u.min() >= 0
        assert u.max() < 1
        assert u.mean().item() == pytest.approx(0.5, abs=0.004)
        assert u.var().item() == pytest.approx(1 / 12, abs=0.002)
        assert x.mean().item() == pytest.approx(0, abs=0.014)
        assert x.var().item() == pytest.approx(1, abs=0.02)
        assert (x**4).mean().item() == pytest.approx(3, abs=0.15)

    def test_seeds_steps_and_streams_are_independent(self):
        rows = [
            Draws([seed], step).normal(stream, 4000)
            for seed in range(4)
            for step in range(4)
            for stream in "ab"
        ]
        correlation = torch.corrcoef(torch.cat(rows)).fill_diagonal_(0)
        assert correlation.abs().max() < 0.08  # five standard deviations


def test_held_out_files_are_evaluation_text_and_nothing_else(tmp_path, monkeypatch):
    training = bytes(range(100)) * 20
    held = bytes(range(100, 200)) * 20
    write_linux(tmp_path, monkeypatch, training, held)
    task = data.language("linux", batch=2, length=16, root=tmp_path)
    assert bytes(task.tokens.tolist()) == training
    seen = torch.cat([torch.cat(batch) for batch in task.evaluation()])
    assert seen.min() >= 100
    cut = data.language("linux", batch=2, length=16, root=tmp_path, held_out=0.1)
    assert torch.cat([torch.cat(batch) for batch in cut.evaluation()]).max() < 100
    write_linux(tmp_path, monkeypatch, training, held[1:])
    other = data.language("linux", batch=2, length=16, root=tmp_path)
    assert len({task.name, cut.name, other.name}) == 3


def test_a_changed_file_of_linux_is_refused(tmp_path, monkeypatch):
    write_linux(tmp_path, monkeypatch, b"int main;" * 50, b"void f();" * 50)
    (tmp_path / "linux" / "training.xz").write_bytes(lzma.compress(b"int nain;" * 50))
    with refuses("damaged-file", argument="source"):
        data.language("linux", root=tmp_path)
    (tmp_path / "linux" / "training.xz").write_bytes(b"not compressed")
    with refuses("damaged-file", argument="source"):
        data.language("linux", root=tmp_path)


def test_too_little_held_out_text_is_refused(tmp_path, monkeypatch):
    write_linux(tmp_path, monkeypatch, TEXT, b"short")
    with refuses("too-little-text", argument="source"):
        data.language("linux", batch=2, length=16, root=tmp_path)


def write_linux(root, monkeypatch, training, held):
    """Write the two texts as `orderone.data.fetch` does, with their hashes as the known ones."""
    (root / "linux").mkdir(exist_ok=True)
    for name, text in zip(linux.TEXTS, (training, held), strict=True):
        (root / "linux" / name).write_bytes(lzma.compress(text))
        monkeypatch.setitem(linux.TEXTS, name, sha256(text).hexdigest())


def test_tokens_of_files_in_sixteen_bits():
    tokens = torch.arange(2000) % 300
    wide = data.Language(tokens, 300, 2, 8)
    narrow = data.Language(tokens.to(torch.uint16), 300, 2, 8)
    assert torch.equal(wide.batch(0, 0)[0], narrow.batch(0, 0)[0])


@pytest.mark.parametrize(
    ("tokens", "vocab", "argument"),
    [("text", 3, "tokens"), (torch.ones(9), 3, "tokens"), (torch.arange(900), 300, "vocab")],
)
def test_a_task_of_wrong_tokens_is_refused(tokens, vocab, argument):
    with pytest.raises(InputError) as caught:
        data.Language(tokens, vocab)
    assert caught.value.argument == argument
