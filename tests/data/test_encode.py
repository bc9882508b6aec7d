"""Byte pairs: token numbers equal GPT-2's, decoding restores the text, and text is encoded once."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from orderone import data
from orderone.data.encode import _chunks, encode, encode_pieces

ROOT = Path(__file__).parents[2] / "data"
TEXT = ("low lower lowest, the new newer newest\n  one  two\n\n" * 40).encode()


@pytest.fixture
def small(tmp_path):
    """A tokenizer in GPT-2's format: the bytes of English, and a few pairs."""
    letters = [chr(i) for i in range(33, 127)] + ["Ġ", "Ċ"]
    merges = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("e", "r"), ("n", "e"), ("ne", "w")]
    words = {word: i for i, word in enumerate([*letters, *("".join(pair) for pair in merges)])}
    folder = tmp_path / "gpt2"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps(words))
    (folder / "vocab.bpe").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n"
    )
    return tmp_path


def decoded(tokens, root):
    words = {
        i: word for word, i in json.loads((root / "gpt2" / "encoder.json").read_text()).items()
    }
    return "".join(words[i] for i in tokens.tolist()).replace("Ġ", " ").replace("Ċ", "\n").encode()


def test_pairs_are_merged_and_decoding_restores_the_text(small):
    tokens, vocab = encode(TEXT, "gpt2", small)
    assert vocab == 102
    assert tokens.dtype == torch.int32
    assert len(tokens) < len(TEXT)
    assert decoded(tokens, small) == TEXT


def test_chunks_do_not_change_the_tokens(small, monkeypatch):
    text = TEXT + b"low \nlow\nlow\n\nlow\n low  \n\tlow\nlow" * 20
    monkeypatch.setattr("orderone.data.encode._CHUNK", len(text))
    whole, _ = encode(text, "gpt2", small, cache=False)
    monkeypatch.setattr("orderone.data.encode._CHUNK", 7)
    assert len(_chunks(text)) > 10
    assert b"".join(_chunks(text)) == text
    assert torch.equal(encode(text, "gpt2", small, cache=False)[0], whole)


def test_text_is_encoded_once(small, monkeypatch):
    first, _ = encode(TEXT, "gpt2", small)
    assert len(list((small / "encoded").glob("*.safetensors"))) == 1
    monkeypatch.setattr("orderone.data.encode._encode", None)
    assert torch.equal(encode(TEXT, "gpt2", small)[0], first)
    with pytest.raises(TypeError):
        encode(TEXT + b"x", "gpt2", small)


def test_a_damaged_cache_is_made_anew(small):
    first, _ = encode(TEXT, "gpt2", small)
    (path,) = (small / "encoded").glob("*.safetensors")
    path.write_bytes(b"half")
    assert torch.equal(encode(TEXT, "gpt2", small)[0], first)
    assert path.stat().st_size > 100


def test_another_cache_folder_or_no_cache(small, tmp_path):
    encode(TEXT, "gpt2", small, cache=False)
    assert not (small / "encoded").exists()
    encode(TEXT, "gpt2", small, cache=tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_lengths_of_encoded_pieces(small):
    tokens, lengths, _ = encode_pieces([b"low", b" lower", b"x"], "gpt2", small, False)
    assert lengths.tolist() == [1, 2, 1]
    assert decoded(tokens, small) == b"low lowerx"


def test_tasks_of_byte_pairs(small):
    task = data.language(TEXT, "gpt2", length=8, root=small)
    assert task.vocab == 102
    assert task.batch(0, 0)[0].max() < 102
    denoising = data.denoising(TEXT, "gpt2", length=16, root=small)
    assert denoising.vocab == 106
    assert denoising.batch(0, 0)[0]["source"].max() < 106


def test_a_tokenizer_json(small, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    coder = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"one": 0, "two": 1, "?": 2}, unk_token="?")
    )
    coder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    coder.save(str(tmp_path / "tokenizer.json"))
    for given in (tmp_path / "tokenizer.json", str(tmp_path), coder):
        assert encode(b"one two three", given, cache=False)[0].tolist() == [0, 1, 2]


def plain_gpt2(text, folder):
    """GPT-2's encoder as a loop, for ASCII: split into words, then merge the pair of the lowest
    rank until there is none."""
    words = json.loads((folder / "encoder.json").read_text())
    lines = (folder / "vocab.bpe").read_text().splitlines()[1:]
    ranks = {tuple(line.split()): i for i, line in enumerate(lines) if line}
    found = []
    for word in re.findall(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", text
    ):
        parts = list(word.translate({32: "Ġ", 10: "Ċ", 9: "ĉ"}))
        while pairs := [
            (ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks
        ]:
            _, i = min(pairs)
            parts[i : i + 2] = ["".join(parts[i : i + 2])]
        found += [words[part] for part in parts]
    return found


@pytest.mark.skipif(
    not (ROOT / "gpt2").is_dir(), reason="no data here: python -m orderone.data.fetch gpt2"
)
def test_gpt2_gives_its_known_token_numbers():
    assert encode(b"hello world", "gpt2", ROOT, cache=False)[0].tolist() == [31373, 995]
    assert encode(b"hello world", "gpt2", ROOT, cache=False)[1] == 50257


@pytest.mark.skipif(
    not (ROOT / "gpt2").is_dir(), reason="no data here: python -m orderone.data.fetch gpt2"
)
def test_gpt2_equals_a_plain_loop_for_all_cuts(monkeypatch):
    text = "".join(path.read_text() for path in sorted(Path(pytest.__file__).parent.glob("*.py")))
    text = text.encode("ascii", "ignore")[:60_000]
    expected = plain_gpt2(text.decode(), ROOT / "gpt2")
    for size in (500, 1 << 20):
        monkeypatch.setattr("orderone.data.encode._CHUNK", size)
        assert encode(text, "gpt2", ROOT, cache=False)[0].tolist() == expected
