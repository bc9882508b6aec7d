"""Alignment of real models: ratios against matrices written out, the laws of errata S0.5 and S0.6,
and bad input."""

from itertools import count, islice
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.errors import refuses
from support.zoo import ZOO
from torch import Tensor, nn
from torch.nn import functional

from orderone import matrix, plan, register, rules
from orderone.core.errors import code_of
from orderone.measure.alignment import alignment
from orderone.measure.alignment_ratios import COLUMNS, MeasuredAlignment
from orderone.theory.exponents import max_lr

VOCAB, CLASSES, TOKENS = 64, 10, 16


def coded(a: MeasuredAlignment, code: str) -> list[str]:
    """Return the notes with this code."""
    return [note for note in a.notes if code_of(note) == code]


class Sign(torch.optim.Optimizer):
    """The momentumless step of S0 (12)."""

    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())


def bigram_batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    return torch.arange(TOKENS), torch.randint(
        0, CLASSES, (TOKENS,), generator=torch.Generator().manual_seed(seed)
    )


HELD_OUT = torch.arange(TOKENS, 2 * TOKENS)


# --- the definitions ------------------------------------------------------------------------------


class Mixed(nn.Module):
    """An embedding and four matrices, held by a Linear, a transposed Conv1D, a 1x1 convolution and
    a Linear."""

    def __init__(self, n: int):
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        self.embed, self.linear, self.transposed = (
            nn.Embedding(VOCAB, n),
            nn.Linear(n, n),
            Conv1D(n, n),
        )
        self.conv, self.head = nn.Conv2d(n, n, 1), nn.Linear(n, CLASSES)
        nn.init.normal_(self.transposed.bias)  # a bias is no part of the product
        nn.init.normal_(self.transposed.weight, std=n**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.transposed(self.linear(self.embed(tokens)))
        return self.head(self.conv(h[..., None, None]).flatten(1))


def rms(x: Tensor) -> Tensor:
    return (x * x).mean().sqrt()


def plain_matrices(model: Mixed) -> list[Tensor]:
    """The embedding, the four matrices as (out, in), and their biases."""
    held = [model.linear, model.transposed, model.conv, model.head]
    weights = [
        model.linear.weight,
        model.transposed.weight.T,
        model.conv.weight[:, :, 0, 0],
        model.head.weight,
    ]
    return [
        x.detach().clone()
        for x in (model.embed.weight, *weights, *(module.bias for module in held))
    ]


def activations(p: list[Tensor], tokens: Tensor) -> list[Tensor]:
    h = [p[0][tokens]]
    for w, b in zip(p[1:5], p[5:], strict=True):
        h.append(h[-1] @ w.T + b)
    return h


def by_hand(
    n: int, seed: int, lr: float, steps: int, tokens: Tensor
) -> list[dict[str, list[float]]]:
    """omega, alpha and u of the four matrices at every step."""
    torch.manual_seed(seed)
    p, (train, targets) = plain_matrices(Mixed(n).double()), bigram_batch()
    found = []
    for _ in range(steps):
        wanted = [x.requires_grad_(True) for x in p]
        loss = functional.cross_entropy(activations(wanted, train)[-1], targets)
        gradients = torch.autograd.grad(loss, wanted)
        old, p = (
            [x.detach() for x in p],
            [(x - lr * g.sign()).detach() for x, g in zip(p, gradients, strict=True)],
        )
        layers = list(
            zip(
                old[1:5],
                p[1:5],
                activations(old, tokens)[:4],
                activations(p, tokens)[:4],
                strict=True,
            )
        )
        pairs = {
            "omega": [(w, y - x) for w, _, x, y in layers],
            "alpha": [(v - w, x) for w, v, x, _ in layers],
            "u": [(v - w, y - x) for w, v, x, y in layers],
        }
        found.append(
            {
                k: [float(rms(x @ w.T) / (rms(w) * rms(x))) for w, x in some]
                for k, some in pairs.items()
            }
        )
    return found


@pytest.mark.parametrize("tokens", ["training", "held-out"])
def test_the_ratios_are_those_of_the_matrices(tokens):
    def build(n: int):
        model = Mixed(n).double()
        return model, Sign(model.parameters(), 1e-3)

    a = alignment(build, [8, 16, 32], batches=bigram_batch(), held_out=HELD_OUT, steps=3, seeds=[5])
    which = bigram_batch()[0] if tokens == "training" else HELD_OUT
    for n in (8, 32):
        for step, expected in enumerate(by_hand(n, 5, 1e-3, 3, which), start=1):
            here: Any = a.frame[
                (a.frame.width == n) & (a.frame.step == step) & (a.frame.tokens == tokens)
            ]
            for kind, values in expected.items():
                got = here[here.quantity == kind].set_index("module").ratio
                named = dict(zip(("linear", "transposed", "conv", "head"), values, strict=True))
                named = {module: value for module, value in named.items() if np.isfinite(value)}
                assert dict(got) == pytest.approx(named, rel=1e-5), (n, step, kind)
                assert len(named) == 3 + (
                    tokens == "training" or kind == "alpha"
                )  # embeddings held out do not move
    assert any("omega of linear; u of linear" in note for note in coded(a, "ratios-left-out"))


def test_multipliers_in_hooks_are_no_part_of_the_matrices():
    """All gauges are the same network: sizes of W and x differ, ratios do not."""
    options = {
        "batches": bigram_batch(),
        "steps": 2,
        "seeds": 1,
        "lr": 1e-2,
        "optimizer": "adam",
        "eps": 0.0,
    }
    folded, unit = (
        alignment(Bigram, [16, 32, 64], gauge=gauge, **options) for gauge in ("folded", "unit")
    )
    assert len(folded.frame) == len(unit.frame) == 3 * 2 * 3 * 4
    assert np.allclose(folded.frame.ratio, unit.frame.ratio, rtol=1e-2)


# --- the laws -------------------------------------------------------------------------------------


class Bigram(nn.Module):
    """S0 (1), with an activation between layers if there is one."""

    def __init__(self, n: int, activation: Any = nn.Identity):
        super().__init__()
        self.embed, self.act = nn.Embedding(VOCAB, n), activation()
        self.hidden = nn.ModuleList([nn.Linear(n, n, bias=False) for _ in range(3)])
        self.head = nn.Linear(n, CLASSES, bias=False)
        gain = 1.0 if activation is nn.Identity else 2.0
        for layer in (*self.hidden, self.head):
            nn.init.normal_(layer.weight, std=(gain / n) ** 0.5)  # pyright: ignore[reportArgumentType]

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in self.hidden:
            h = layer(self.act(h))
        return self.head(self.act(h))


def measured(activation: Any = nn.Identity, **options: Any) -> MeasuredAlignment:
    options = {"lr": 1e-2, "optimizer": "adam", "steps": 4, "seeds": 4} | options
    widths = [64, 128, 256, 512]
    return alignment(
        lambda n: Bigram(n, activation),
        widths,
        batches=bigram_batch(),
        held_out=HELD_OUT,
        **options,
    )


@pytest.fixture(scope="module")
def linear() -> MeasuredAlignment:
    torch.set_num_threads(1)
    return measured()


def exponent(a: MeasuredAlignment, role: str, tokens: str, step: int, quantity: str) -> float:
    rows = a.by_role.set_index(["role", "tokens", "step", "quantity"])
    return float(rows.loc[(role, tokens, step, quantity), "exponent"])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("step", [1, 4])
def test_the_readout_is_aligned_from_the_first_step_and_hidden_layers_are_not(linear, step):
    """Erratum S0.5: omega is .95-.98 at the readout and .50 in hidden layers, also on tokens that
    are held out."""
    for tokens in ("training", "held-out"):
        assert 0.92 < exponent(linear, "readout", tokens, step, "omega") < 1.03
        assert exponent(linear, "hidden", tokens, step, "omega") == pytest.approx(0.5, abs=0.05)


def test_updates_are_aligned_with_training_tokens_and_not_with_others(linear):
    """Errata S0.5, S0.6: alpha .92-1.00 and .50-.55; u .46-.53 at the first step, and then it
    rises."""
    for step in (1, 4):
        assert 0.88 < exponent(linear, "hidden", "training", step, "alpha") < 1.03
        assert exponent(linear, "hidden", "held-out", step, "alpha") == pytest.approx(
            0.52, abs=0.07
        )
    assert exponent(linear, "hidden", "training", 1, "u") == pytest.approx(0.5, abs=0.12)
    assert exponent(linear, "hidden", "training", 4, "u") > 0.75


def test_relu_makes_all_tokens_alike():
    """Positive activations share a direction, so that updates align with held-out tokens, too.

    omega is .91-.93 (S0.5).
    """
    a = measured(nn.ReLU)
    for tokens in ("training", "held-out"):
        assert exponent(a, "hidden", tokens, 1, "alpha") == pytest.approx(0.97, abs=0.08)
        assert exponent(a, "hidden", tokens, 1, "omega") == pytest.approx(0.5, abs=0.06)
    assert 0.83 < exponent(a, "readout", "training", 1, "omega") < 1.03


def test_the_law_of_a_role_is_the_mean_of_its_layers(linear):
    own = linear.exponents[
        (linear.exponents.role == "hidden") & (linear.exponents.tokens == "training")
    ]
    assert own.module.nunique() == 3
    means = own.groupby(["step", "quantity"]).exponent.mean()
    for (step, quantity), mean in means.items():
        assert exponent(linear, "hidden", "training", step, quantity) == pytest.approx(
            mean, abs=1e-9
        )


# --- what it is for -------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_measured_alignment_is_accepted_by_the_solver_and_makes_a_rule(linear, optimizer):
    given = linear.as_alignment()
    assert list(given) == ["omega", "alpha", "u"]
    assert all(sorted(values) == ["hidden", "readout"] for values in given.values())
    rule = rules.from_alignment(linear, like="mup", optimizer=optimizer)
    assert {role: rule.c[role] for role in ("embedding", "hidden", "readout")} == max_lr(
        rules.get("mup", optimizer), optimizer, given
    )
    assert abs(rule.c["hidden"] - rules.get("mup", optimizer).c["hidden"]) < 0.2
    made = plan(Bigram(128), base=Bigram(64), rule=rule, optimizer=optimizer, lr=0.1)
    growth = 2.0
    assert made["hidden.0.weight"].lr == pytest.approx(0.1 * growth ** -float(rule.c["hidden"]))


def test_held_out_tokens_allow_larger_rates(linear):
    on_training, on_others = (
        max_lr(rules.get("mup"), "adam", linear.as_alignment(t)) for t in ("training", "held-out")
    )
    assert on_others["hidden"] < on_training["hidden"] - 0.1


def test_the_text_has_a_row_for_each_role_at_the_first_and_last_step(linear):
    first, header, *lines = str(linear).splitlines()
    assert first == "alignment: mup for adam, widths 64, 128, 256, 512, 4 steps, 4 seeds"
    assert header.split() == ["role", "tokens", "step", "omega", "alpha", "u"]
    assert [tuple(line.split()[:3]) for line in lines[:8]] == [
        (role, tokens, step)
        for role in ("hidden", "readout")
        for tokens in ("training", "held-out")
        for step in "14"
    ]


# --- real models ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hidden", "readout"), [("gpt2", 8, "lm_head"), ("llama", 14, "lm_head")]
)
def test_language_models(name, hidden, readout):
    """Every attention and MLP matrix is hidden, and the head, tied (GPT-2) or not, is the
    readout."""
    entry = ZOO[name]
    a = alignment(
        entry.build,
        [32, 64, 128],
        lr=3e-3,
        batches=entry.batch(0),
        held_out=entry.batch(1),
        steps=2,
        seeds=1,
    )
    roles = a.frame.groupby("module").role.first()
    assert (roles == "hidden").sum() == hidden
    assert list(roles[roles == "readout"].index) == [readout]
    assert a.frame.groupby(["width", "step", "tokens", "quantity"]).size().unique().tolist() == [
        hidden + 1
    ]
    assert a.notes == ()
    assert exponent(a, "hidden", "training", 2, "omega") == pytest.approx(0.5, abs=0.08)
    assert exponent(a, "hidden", "training", 2, "alpha") > 0.65


def test_modules_that_are_no_linear_map_are_named():
    entry = ZOO["nn-transformer-encoder"]

    def batch(i: int):
        return {"ids": entry.batch(i)["ids"].repeat(2, 1)}

    a = alignment(entry.build, [32, 64, 96], batches=batch(0), loss=entry.loss, steps=1, seeds=1)
    assert set(a.frame.module) == {f"body.layers.{i}.linear{k}" for i in (0, 1) for k in (1, 2)} | {
        "head"
    }
    (note,) = coded(a, "layers-not-measured")
    assert "self_attn.in_proj_weight" in note


class Bent(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class TwoMatrices(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.down, self.up = (nn.Parameter(torch.randn(n, n) / n**0.5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down.T @ self.up.T


def test_a_layer_is_linear_in_the_one_matrix_it_has():
    register(TwoMatrices, down=matrix(into=1, out=0), up=matrix(into=1, out=0))

    def build(n: int) -> nn.Module:
        layers = [nn.Linear(n, n), Bent(n, n), TwoMatrices(n), nn.Linear(n, CLASSES)]
        return nn.Sequential(nn.Embedding(VOCAB, n), *layers)

    a = alignment(build, [16, 32, 64], batches=bigram_batch(), held_out=HELD_OUT, steps=1, seeds=1)
    (note,) = a.notes
    assert code_of(note) == "layers-not-measured"
    assert "3.down, 3.up, 2.weight" in note
    assert set(a.frame.module) == {"1", "4"}


def test_dropout_masks_are_the_same_before_and_after_a_step():
    """With different masks, dx would consist mostly of the difference of masks."""

    def build(n: int) -> nn.Module:
        return nn.Sequential(
            nn.Embedding(VOCAB, n), nn.Dropout(0.5), nn.Linear(n, n), nn.Linear(n, CLASSES)
        )

    options = {"optimizer": "adam", "lr": 1e-3, "steps": 1, "seeds": 1}
    a = alignment(build, [16, 32, 64], batches=bigram_batch(), held_out=HELD_OUT, **options)
    # held-out embeddings do not move, whatever is dropped
    assert any("omega of 2; u of 2" in note for note in coded(a, "ratios-left-out"))


# --- batches and runs that end --------------------------------------------------------------------


def stream():
    return (bigram_batch(i) for i in count())


@pytest.mark.parametrize(
    ("batches", "other"),
    [
        (bigram_batch(), False),
        ([bigram_batch()] * 5, False),  # the one that follows is one that is trained on
        ([(x + 3 * i, y) for i in range(4) for x, y in [bigram_batch()]], True),
        ([(x + 3 * i, y) for i in range(3) for x, y in [bigram_batch()]], False),
    ],
)
def test_held_out_tokens_are_those_that_follow(batches, other):
    a = alignment(Bigram, [8, 16, 32], batches=batches, steps=3, seeds=1)
    assert set(a.frame.tokens) == ({"training", "held-out"} if other else {"training"})
    assert bool(coded(a, "no-held-out-tokens")) is not other
    if not other:
        with refuses("no-held-out-tokens", argument="tokens") as caught:
            a.as_alignment("held-out")
        assert "on held-out tokens" in str(caught.value)


def test_a_stream_that_ends():
    a = alignment(Bigram, [8, 16, 32], batches=islice(stream(), 2), steps=3, seeds=1)
    assert set(a.frame.step) == {1, 2}
    (note,) = coded(a, "too-few-batches")
    assert "2 of 3 steps" in note


def test_a_loss_that_is_not_finite_ends_a_run_and_no_more():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        return functional.cross_entropy(output, target) * (float("nan") if len(calls) == 2 else 1)

    calls: list[int] = []
    a = alignment(Bigram, [8, 16, 32, 64], batches=bigram_batch(), loss=loss, steps=2, seeds=1)
    (note,) = coded(a, "run-diverged")
    assert note.startswith("width 8, seed 0: the loss is nan at step 1")
    assert a.frame.groupby("width").step.max().to_dict() == {8: 1, 16: 2, 32: 2, 64: 2}
    assert set(a.exponents.step) == {1, 2}


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(KeyboardInterrupt, "check-interrupted", "3 of 6"), (MemoryError, "run-failed", "width 8")],
)
def test_finished_runs_are_returned(error, code, words):
    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise error
        return functional.cross_entropy(output, target)

    calls: list[int] = []
    a = alignment(Bigram, [8, 16, 32], batches=bigram_batch(), loss=loss, steps=1, seeds=2)
    assert any(words in note for note in coded(a, code))
    assert len(a.exponents) == 4 * 3
    assert max_lr(rules.get("mup"), "adam", a.as_alignment())


def test_a_readout_of_zeros_and_a_frozen_layer_leave_points_out():
    def build(n: int) -> nn.Module:
        model = Bigram(n)
        nn.init.zeros_(model.head.weight)
        model.hidden[1].requires_grad_(False)
        return model

    a = alignment(build, [16, 32, 64], lr=1e-2, batches=bigram_batch(), steps=2, seeds=1)
    assert coded(a, "ratios-left-out")
    assert not ((a.frame.module == "hidden.1") & (a.frame.quantity == "alpha")).any()
    assert set(a.frame[(a.frame.module == "head") & (a.frame.quantity == "omega")].step) == {2}


def test_build_may_return_a_module_a_plan_or_an_optimizer():
    """A module, a plan of it, and the two together with an optimizer are the same training."""
    torch.manual_seed(0)
    base = Bigram(16)

    def planned(n: int):
        torch.manual_seed(0)
        return plan(Bigram(n), base=base, optimizer="adam", lr=1e-2)

    def with_optimizer(n: int):
        made = planned(n)
        return made.apply(), made.optimizer()

    options = {"batches": bigram_batch(), "steps": 2, "seeds": 1}
    a, b = (alignment(build, [16, 32, 64], **options) for build in (planned, with_optimizer))
    c = alignment(Bigram, [16, 32, 64], optimizer="adam", lr=1e-2, base=16, **options)
    assert np.allclose(a.frame.ratio, b.frame.ratio, rtol=1e-3)
    assert np.allclose(a.frame.ratio, c.frame.ratio, rtol=1e-3)


def test_the_largest_may_be_the_base():
    a = alignment(Bigram, [16, 32, 64], batches=bigram_batch(), base=64, steps=1, seeds=1)
    assert set(a.frame.module) == {"hidden.0", "hidden.1", "hidden.2", "head"}


# --- bad input ------------------------------------------------------------------------------------


def test_fewer_than_eight_tokens():
    x, y = bigram_batch()
    with refuses("too-few-tokens", argument="batches") as caught:
        alignment(Bigram, [8, 16, 32], batches=(x[:7], y[:7]), seeds=1)
    assert "8 training tokens, got 7" in str(caught.value)
    assert "hidden.0" in str(caught.value)
    with refuses("too-few-tokens", argument="batches") as caught:
        alignment(Bigram, [8, 16, 32], batches=(x, y), held_out=x[:1] + 20, seeds=1)
    assert "8 held-out tokens, got 1" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": [64]}, r"widths: .*at least two.* \[64\]"),
        ({"widths": 64}, r"widths: .*several sizes.* 64 \[wrong-type\]"),
        ({"widths": [8, 16], "seeds": 1}, "seeds: .*at least two"),
        ({"build": 3}, r"build: .*got int \[wrong-type\]"),
        ({"build": lambda n: n}, r"build: .*returned int \[wrong-type\]"),
        ({"build": lambda n: nn.Embedding(VOCAB, n)}, r"build: .*\[layers-not-measured\]"),
        ({"build": lambda n: Bigram(n).requires_grad_(False)}, r"build: .*\[frozen-tensor\]"),
        ({"batches": None}, "batches: "),
        ({"batches": [bigram_batch()] * 2}, "batches: .*4 steps.* 2"),
        ({"held_out": [1, 2]}, r"held_out: .*got list \[wrong-type\]"),
        ({"rule": "mupp"}, "rule.*'mupp'"),
        ({"steps": 0}, "steps: .* 0"),
        ({"base": "small"}, "base: .*'small'"),
    ],
)
def test_bad_input(changed, message):
    arguments: dict[str, Any] = {
        "build": Bigram,
        "widths": [8, 16, 32],
        "batches": bigram_batch(),
        "seeds": 1,
    } | changed
    with pytest.raises(ValueError, match=message):
        alignment(arguments.pop("build"), arguments.pop("widths"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": "test"}, r"tokens: .*training, held-out.*\[unknown-name\]"),
        ({"step": 9}, "step: .*1, 2.* 9"),
    ],
)
def test_wrong_tokens_and_steps(linear, arguments, message):
    with pytest.raises(ValueError, match=message):
        linear.as_alignment(**arguments)


def test_an_empty_measurement_can_be_printed():
    empty = MeasuredAlignment(pd.DataFrame([], columns=COLUMNS), ("interrupted after 0 of 6 runs",))
    assert str(empty).endswith("note: interrupted after 0 of 6 runs")
    with pytest.raises(ValueError, match="training tokens: interrupted"):
        empty.as_alignment()


def test_a_build_that_ignores_the_width():
    with refuses("same-shapes", argument="build"):
        alignment(
            lambda width: nn.Linear(8, CLASSES),
            [8, 16, 32],
            batches=(torch.randn(TOKENS, 8), bigram_batch()[1]),
        )
