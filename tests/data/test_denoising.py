"""Span denoising: the law of the spans, a plain loop as the oracle, and models that train on it."""

from itertools import pairwise
from math import exp

import pytest
import torch
from support.errors import refuses

from orderone import data
from orderone.data.corruption import infill, permute, spans
from orderone.data.draws import Draws
from orderone.data.sentences import Sentences, read_sentences
from orderone.nn import EncoderDecoder
from orderone.observe.batches import loss_of

TEXT = b'One sentence. Another one! "Is it?" It is.\n\nA new part, with 3.5 in it. ' * 60


def task(batch=8, length=64, **given):
    return data.denoising(TEXT, batch=batch, length=length, **given)


class TestSentences:
    def read(self, text, longest=100):
        found, _ = read_sentences(text, "bytes", longest, "data", None)
        starts = found.starts.tolist()
        return [bytes(found.tokens[i:j].tolist()) for i, j in pairwise(starts)]

    def test_sentences_end_at_full_stops_and_empty_lines(self):
        found = self.read(b'One. "Two?" Three 3.5\n\nFour!')
        assert found == [b"One.", b' "Two?"', b" Three 3.5", b"\n\nFour!"]

    def test_long_sentences_are_cut_and_no_token_is_lost(self):
        text = b"a" * 25 + b". " + b"b" * 10
        assert [len(x) for x in self.read(text, 10)] == [10, 10, 6, 10, 1]
        assert b"".join(self.read(text, 10)) == text

    def test_a_sample_is_whole_sentences(self):
        known = {
            (" " + s).strip()
            for s in (
                "One sentence.",
                "Another one!",
                '"Is it?"',
                "It is.",
                "A new part, with 3.5 in it.",
            )
        }
        (_, labels) = task().batch(0, 0)
        for row in labels.tolist():
            text = bytes(x for x in row if 0 <= x < 256).decode().strip()
            assert text.endswith((".", "!", '"'))
            assert any(text.startswith(s) for s in known)

    def test_training_never_uses_held_out_sentences(self):
        numbers = Sentences(torch.arange(3000, dtype=torch.int32), torch.arange(0, 3001, 3))
        train, held = numbers.split(0.1)
        assert len(train) + len(held) == 1000
        assert len(held) == pytest.approx(100, abs=16)
        assert not set(train.tokens.tolist()) & set(held.tokens.tolist())
        assert sorted(train.tokens.tolist() + held.tokens.tolist()) == list(range(3000))


class TestLaw:
    length = torch.full((4000,), 200)

    def drawn(self, ratio=0.3, mean=3.0):
        return spans(self.length, Draws([0], 0).uniform("x", 4000, 61)[0], ratio, mean)

    def test_exactly_the_ratio_is_masked(self):
        lengths, _ = self.drawn()
        assert (lengths.sum(1) == 60).all()

    def test_lengths_are_poisson(self):
        lengths, there = self.drawn()
        whole = lengths[:, :10][there[:, :10]]  # far from the last span, which is cut
        for k in range(8):
            chance = exp(-3) * 3**k / [1, 1, 2, 6, 24, 120, 720, 5040][k]
            assert (whole == k).float().mean().item() == pytest.approx(chance, abs=0.008), k
        assert whole.float().mean().item() == pytest.approx(3, abs=0.04)
        assert whole.float().var().item() == pytest.approx(3, abs=0.1)

    def test_the_number_of_spans_follows_renewal_theory(self):
        """The last span overshoots by (E[l^2] / E[l] - 1) / 2 = 1.5 before it is cut."""
        _, there = self.drawn()
        assert there.sum(1).float().mean().item() == pytest.approx((60 + 1.5) / 3, abs=0.15)

    def test_every_place_is_masked_equally_often(self):
        """Four spans of three in a text of 40 leave 28 tokens and four masks: each of the 32 places
        is a mask with probability 1/8."""
        n, tokens = 8000, torch.arange(40).expand(8000, 40)
        lengths, there = torch.full((n, 4), 3), torch.ones(n, 4, dtype=torch.bool)
        length, keys = torch.full((n,), 40), Draws([1], 0).uniform("m", n, 40)[0]
        found, after = infill(tokens, length, lengths, there, keys, mask=99)
        assert (after == 32).all()
        masks = (found[:, :32] == 99).float().mean(0)
        assert (masks - 1 / 8).abs().max() < 0.015  # four standard deviations

    def test_infilling_equals_a_plain_loop(self):
        draws, n, L = Draws([2], 0), 60, 30
        length = draws.below(L - 3, "length", n)[0] + 4
        tokens = draws.below(50, "tokens", n, L)[0]
        lengths, there = spans(length, draws.uniform("s", n, 12)[0], 0.3, 3.0)
        keys = draws.uniform("m", n, L)[0]
        found, after = infill(tokens, length, lengths, there, keys, mask=99)
        for i in range(n):
            left = lengths[i][there[i]].tolist()
            size = int(length[i]) - sum(left) + len(left)
            masks = sorted(range(size), key=lambda j: keys[i, j].item())[: len(left)]
            expected, text = [], tokens[i, : length[i]].tolist()
            for place in range(size):
                if place in masks:
                    text = text[left.pop(0) :]
                    expected.append(99)
                else:
                    expected.append(text.pop(0))
            assert not text
            assert found[i, : after[i]].tolist() == expected

    def test_sentences_are_permuted_as_wholes(self):
        tokens = torch.tensor([[10, 11, 20, 30, 31, 32, 7, 7]])
        sentence = torch.tensor([[0, 0, 1, 2, 2, 2, 3, 3]])
        keys = torch.tensor([[0.9, 0.5, 0.1, 0.0, 0, 0, 0, 0]])
        assert permute(tokens, sentence, torch.tensor([6]), keys).tolist() == [
            [30, 31, 32, 20, 10, 11, 7, 7]
        ]


def test_labels_are_the_text_and_the_decoder_input_is_shifted_by_one():
    t = task(held_out=0)
    inputs, labels = t.batch(0, 0)
    target, source, mask = inputs["target"], inputs["source"], inputs["source_mask"]
    assert source.shape == mask.shape == (8, 66)
    assert target.shape == labels.shape == (8, 65)
    for read, give in zip(target.tolist(), labels.tolist(), strict=True):
        text = [x for x in give if x >= 0]
        assert text[-1] == t.end
        assert bytes(text[:-1]) in TEXT
        assert read[: len(text)] == [t.start, *text[:-1]]
        assert set(read[len(text) :]) <= {t.pad}
    assert ((source == t.pad) == ~mask).all()
    assert (source[:, 0] == t.start).all()
    assert ((source == t.end).sum(1) == 1).all()
    assert (source == t.mask).sum(1).min() >= 1


def test_unmasked_text_is_in_the_source():
    t = task(length=200)
    inputs, labels = t.batch(3, 1)
    for source, text in zip(inputs["source"], labels, strict=True):
        kept = torch.bincount(source[source < 256], minlength=256)
        before = torch.bincount(text[(text >= 0) & (text < 256)], minlength=256)
        assert (kept <= before).all()
        assert (before.sum() - kept.sum()).item() == round(0.3 * before.sum().item())


@pytest.mark.parametrize("format", ["pairs", "huggingface"])
def test_batches_depend_on_step_and_seed_alone(format):
    one, two = task(format=format), task(format=format)
    leaves = lambda b: [*b.values()] if isinstance(b, dict) else [*b[0].values(), b[1]]  # noqa: E731
    stacked = leaves(one.stacked(4, [3, 1]))
    for k, seed in enumerate((3, 1)):
        for many, alone in zip(stacked, leaves(two.batch(4, seed)), strict=True):
            assert torch.equal(many[k], alone)
    assert not torch.equal(leaves(one.batch(4, 3))[0], leaves(one.batch(5, 3))[0])
    for first, again in zip(one.evaluation(), two.evaluation(), strict=True):
        assert all(map(torch.equal, leaves(first), leaves(again)))
    assert isinstance(one, data.StackedTask)


def test_our_encoder_decoder_learns_the_task():
    torch.manual_seed(0)
    t = task(length=32)
    model = EncoderDecoder(vocab=t.vocab, length=34, width=32, heads=2, depth=1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        loss = loss_of(model, t.batch(step, 0), t.loss)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(5.56, abs=0.3)  # log of the vocabulary
    assert losses[-1] < 3.5
    assert loss_of(model, t.evaluation()[0], t.loss) < 3.7


def test_bart_of_hugging_face_accepts_the_batches():
    transformers = pytest.importorskip("transformers")
    t = task(format="huggingface")
    config = transformers.BartConfig(
        vocab_size=t.vocab,
        max_position_embeddings=80,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        pad_token_id=t.pad,
        bos_token_id=t.start,
        eos_token_id=t.end,
        decoder_start_token_id=t.start,
        forced_eos_token_id=None,
    )
    assert loss_of(
        transformers.BartForConditionalGeneration(config), t.batch(0, 0), t.loss
    ).isfinite()


@pytest.mark.parametrize(
    "arguments",
    [
        {"length": 3},
        {"ratio": 0},
        {"ratio": 0.95},
        {"span": 0},
        {"span": 11},
        {"batch": -1},
        {"held_out": 2},
    ],
)
def test_errors_about_numbers_name_the_argument(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"^{name}: "):
        task(**arguments)


def test_errors_name_the_argument():
    with refuses("unknown-name", argument="format"):
        task(format="bart")
    with refuses("too-little-text", argument="source"):
        data.denoising(b"One.")


def test_names_tell_tasks_apart():
    kinds = [
        {},
        {"ratio": 0.2},
        {"span": 2.0},
        {"batch": 4},
        {"length": 32},
        {"format": "huggingface"},
        {"held_out": 0.1},
    ]
    assert len({task(**given).name for given in kinds}) == len(kinds)
