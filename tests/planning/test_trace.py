"""Traces of forward passes: small modules, one for each fact, then published models."""

import math
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from orderone.observe.trace import Branch, Constant, Trace, Use, trace

F = nn.functional
WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 64
HEAD = WIDTH // HEADS


class Forward(nn.Module):
    """A module from its parameters (shapes or modules) and its forward code."""

    def __init__(self, forward: Any, **parts: Any):
        super().__init__()
        self.code = forward
        for name, part in parts.items():
            setattr(
                self, name, part if isinstance(part, nn.Module) else nn.Parameter(torch.randn(part))
            )

    def forward(self, *inputs: Any) -> Any:
        return self.code(self, *inputs)


def traced(code: Any, *inputs: Any, **parts: Any) -> Trace:
    return trace(Forward(code, **parts), inputs or (torch.randn(3, 4),))


def use(kind: str, *fan_in: int) -> tuple[Use, ...]:
    return (Use(kind, fan_in or None),)


MATRICES = {
    "x @ W": (lambda m, x: x @ m.W, (4, 6), (0,)),
    "x @ W, square": (lambda m, x: x @ m.W, (4, 4), (0,)),
    "x @ W.T, square": (lambda m, x: x @ m.W.T, (4, 4), (1,)),
    "W @ x": (lambda m, x: m.W @ x.T, (6, 4), (1,)),
    "a vector": (lambda m, x: x @ m.W, (4,), (0,)),
    "a product and its sum": (lambda m, x: (x * m.W).sum(-1), (4,), (0,)),
    "by heads": (lambda m, x: (x.view(3, 2, 2) * m.W).sum(-1), (2, 2), (1,)),
    "sum of all": (lambda m, x: (m.W * x).sum(), (4,), (0,)),
    "one output": (lambda m, x: F.linear(x, m.W), (1, 4), (1,)),
    "one input": (lambda m, x: F.linear(x[:, :1], m.W), (6, 1), (1,)),
    "one of both": (lambda m, x: F.linear(x[:, :1], m.W), (1, 1), (1,)),
    "einsum by heads": (lambda m, x: torch.einsum("td,dhk->thk", x, m.W), (4, 2, 3), (0,)),
    "einsum over two axes": (
        lambda m, x: torch.einsum("thk,hkd->td", x.view(3, 2, 2), m.W),
        (2, 2, 5),
        (0, 1),
    ),
    "batched heads": (lambda m, x: x.view(3, 2, 1, 2) @ m.W, (2, 2, 5), (1,)),
    "a slice of a packed matrix": (lambda m, x: F.linear(x, m.W[6:12]), (18, 4), (1,)),
    "chunks of a packed matrix": (
        lambda m, x: [F.linear(x, w) for w in m.W.chunk(3)],
        (18, 4),
        (1,),
    ),
    "every second input": (lambda m, x: F.linear(x[:, ::2], m.W[:, ::2]), (6, 4), (1,)),
    "cast": (lambda m, x: F.linear(x.double(), m.W.double()), (6, 4), (1,)),
    "cast, then transposed": (lambda m, x: x.double() @ m.W.double().T, (4, 4), (1,)),
    "copied transposed": (lambda m, x: x @ m.W.T.contiguous(), (4, 4), (1,)),
    "through .data": (lambda m, x: F.linear(x, m.W.data), (6, 4), (1,)),
    "standardized": (
        lambda m, x: F.linear(x, (m.W - m.W.mean(1, keepdim=True)) / m.W.std()),
        (6, 4),
        (1,),
    ),
    "an expert of several": (lambda m, x: F.linear(x, m.W[1]), (3, 6, 4), (2,)),
    "each token's expert": (
        lambda m, x: torch.bmm(m.W[torch.tensor([0, 2, 0])], x[:, :, None]),
        (3, 6, 4),
        (2,),
    ),
    "into the accumulator": (lambda m, x: torch.addmm(x, x, m.W), (4, 4), (0,)),
}


@pytest.mark.parametrize("case", MATRICES)
def test_a_matrix_is_summed_over_its_inputs(case):
    code, shape, axes = MATRICES[case]
    assert traced(code, W=shape).uses == {"W": (Use("matrix", axes),)}


def test_convolutions_are_summed_over_channels_and_kernel():
    x = torch.randn(2, 4, 8, 8)
    assert traced(lambda m, x: m.c(x), x, c=nn.Conv2d(4, 6, 3)).uses == {
        "c.weight": use("convolution", 1, 2, 3),
        "c.bias": use("shift"),
    }
    pointwise = traced(lambda m, x: m.c(x), x, c=nn.Conv2d(4, 6, 1, groups=2, bias=False))
    assert pointwise.uses == {"c.weight": use("convolution", 1, 2, 3)}
    transposed = traced(lambda m, x: m.c(x), x, c=nn.ConvTranspose2d(4, 6, 3, bias=False))
    assert transposed.uses == {"c.weight": use("convolution", 0, 2, 3)}


@pytest.mark.parametrize(
    ("kind", "code", "shape"),
    [
        ("lookup", lambda m, i: F.embedding(i, m.W), (5, 4)),
        ("lookup", lambda m, i: m.W[i], (5, 4)),
        ("lookup", lambda m, i: m.W[torch.arange(3)], (5, 4)),
        ("lookup", lambda m, i: m.W.index_select(0, i), (5, 4)),
        ("gain", lambda m, i: i.float() * m.W, (3,)),
        ("gain", lambda m, i: i.float() * (1 + m.W), (3,)),
        ("gain", lambda m, i: F.rms_norm(i.float(), (3,), m.W), (3,)),
        ("shift", lambda m, i: i.float() + m.W, (3,)),
        ("shift", lambda m, i: i.float().sub_(m.W), (3,)),
        ("shift", lambda m, i: F.layer_norm(i.float(), (3,), None, m.W), (3,)),
        ("table", lambda m, i: torch.cat([m.W, i.float()]), (2,)),
        ("other", lambda m, i: F.prelu(i.float(), m.W), (1,)),
    ],
)
def test_kinds(kind, code, shape):
    assert traced(code, torch.tensor([0, 2, 1]), W=shape).uses == {"W": use(kind)}


def test_a_gain_whose_channels_are_not_summed_stays_a_gain():
    assert traced(lambda m, x: (x * m.W).sum(0), W=(4,)).uses["W"] == use("gain")
    both = traced(lambda m, x: (x * m.W).sum(-1) + (torch.relu(x) * m.W).mean(0)[0], W=(4,))
    assert set(both.uses["W"]) == {Use("matrix", (0,)), Use("gain")}


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4)])
def test_norms_have_gain_and_shift(norm):
    assert traced(lambda m, x: m.norm(x), norm=norm).uses == {
        "norm.weight": use("gain"),
        "norm.bias": use("shift"),
    }


def test_a_tied_matrix_has_both_uses_and_an_unused_one_none():
    code = lambda m, i: F.linear(m.out(F.embedding(i, m.W)), m.W)  # noqa: E731
    uses = traced(code, torch.tensor([0, 1]), W=(5, 4), out=nn.Identity(), idle=(3,)).uses
    assert uses == {"W": (Use("lookup"), Use("matrix", (1,))), "idle": ()}


def test_latent_queries_are_inputs_of_the_matrices_they_meet():
    attention = nn.MultiheadAttention(4, 1, batch_first=True)
    code = lambda m, x: m.a(m.latents.expand(3, 2, 4), x[:, None], x[:, None])  # noqa: E731
    uses = traced(code, latents=(1, 2, 4), a=attention).uses
    assert uses["latents"] == use("other")
    assert uses["a.in_proj_weight"] == uses["a.out_proj.weight"] == use("matrix", 1)


# constants


def test_constants_have_the_parameters_before_and_after():
    def code(m, x):
        h = F.dropout(F.linear(x, m.A).view(3, 2, 2), 0.5, m.training) * 3
        h = h.flatten(1) / torch.tensor(4.0)
        return torch.tanh(F.linear(h, m.B)).mul_(5) + 1

    constants = traced(code, A=(4, 4), B=(2, 4)).constants
    assert constants == (
        Constant(3.0, ("A",), ("B",)),
        Constant(0.25, ("A",), ("B",)),
        Constant(5.0, (), ()),
    )


def test_constants_on_parameters_and_inside_operations_count():
    assert traced(lambda m, x: F.linear(x, 0.5 * m.A), A=(2, 4)).constants == (
        Constant(0.5, ("A",), ()),
    )
    assert traced(lambda m, x: x.add(F.linear(x, m.A), alpha=0.1), A=(4, 4)).constants == (
        Constant(0.1, ("A",), ()),
    )
    scaled = traced(lambda m, x: torch.addmm(m.b, x, m.A, alpha=2), A=(4, 4), b=(4,))
    assert scaled.constants == (Constant(2.0, ("A",), ()),)
    assert scaled.uses == {"A": use("matrix", 0), "b": use("shift")}


def test_only_numbers_are_constants():
    code = lambda m, x: F.linear(x, m.A) * torch.arange(6) * x.sum()  # noqa: E731
    assert traced(code, A=(6, 4)).constants == ()


# scores


def softmax_attention(m, x, norm=lambda z: z, scale=1.0):
    q, k, v = norm(x @ m.Q) * 0.5, norm(x @ m.K), x @ m.V
    return torch.softmax(q @ k.T * scale, -1) @ v


def test_scores_count_every_constant():
    (scores,) = traced(
        lambda m, x: softmax_attention(m, x, scale=0.1), Q=(4, 2), K=(4, 2), V=(4, 4)
    ).scores
    assert (scores.queries, scores.keys, scores.head_size, scores.normalized) == (
        ("Q",),
        ("K",),
        2,
        False,
    )
    assert scores.scale == pytest.approx(0.05)


@pytest.mark.parametrize(
    "norm", [lambda z: F.normalize(z, dim=-1), lambda z: F.rms_norm(z * 7, (2,))]
)
def test_constants_before_a_norm_do_not_reach_the_scores(norm):
    (scores,) = traced(
        lambda m, x: softmax_attention(m, x, norm), Q=(4, 2), K=(4, 2), V=(4, 4)
    ).scores
    assert (scores.queries, scores.keys, scores.scale, scores.normalized) == (
        ("Q",),
        ("K",),
        0.5,
        True,
    )


def test_a_router_makes_no_scores():
    assert traced(lambda m, x: torch.softmax(x @ m.R, -1), R=(4, 3)).scores == ()


@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention(weights):
    attention = nn.MultiheadAttention(8, 2)
    result = traced(
        lambda m, x: m.a(x, x, x, need_weights=weights), torch.randn(3, 1, 8), a=attention
    )
    (scores,) = result.scores
    assert scores.queries == scores.keys == ("a.in_proj_weight",)
    assert (scores.head_size, scores.scale) == (4, pytest.approx(0.5))
    assert result.uses["a.in_proj_weight"] == use("matrix", 1)


# readouts


def test_readouts_are_makers_of_outputs_that_nothing_else_reads():
    def code(m, x):
        h = F.relu(x @ m.A)
        code = h @ m.mean  # returned, and read by the decoder
        heads = h @ m.first, torch.tanh(h @ m.second)
        weights = torch.softmax(h @ m.score, 0)
        return code, *heads, (weights * h).sum(0) @ m.third, F.relu(code @ m.decoder).sum()

    parts = {"A": (4, 6), "mean": (6, 2), "first": (6, 3), "second": (6, 3)}
    more = {"score": (6, 1), "third": (6, 3), "decoder": (2, 5)}
    result = traced(code, **parts, **more)
    assert result.readouts == {"first", "third"}
    assert result.at_output == {"mean", "first", "third"}
    # behind a nonlinearity, and in a loss
    assert result.last_makers == {"mean", "first", "second", "third", "decoder"}


# branches


def block(m, x):
    return F.linear(F.relu(F.linear(x, m.A)), m.B, m.b)


BLOCK = {"A": (6, 4), "B": (4, 6), "b": (4,)}


@pytest.mark.parametrize(
    "code",
    [
        lambda m, x: m.norm(x + block(m, x)),
        lambda m, x: block(m, x) + x,
        lambda m, x: 0.5 * x + 0.1 * block(m, x),
        lambda m, x: F.dropout(block(m, x), 0.1, m.training).add_(x),
        lambda m, x: torch.addmm(x, F.relu(F.linear(x, m.A)), m.B.T) + m.b,
    ],
)
def test_a_branch_ends_in_its_last_matrix(code):
    (branch,) = traced(code, norm=nn.LayerNorm(4), **BLOCK).branches
    assert set(branch.inside) - {"b"} == {"A", "B"}
    assert set(branch.last) - {"b"} == {"B"}


def test_a_branch_may_end_in_a_norm():
    (branch,) = traced(lambda m, x: x + m.norm(block(m, x)), norm=nn.LayerNorm(4), **BLOCK).branches
    assert branch == Branch(
        ("norm.weight", "norm.bias"), ("A", "B", "b", "norm.weight", "norm.bias")
    )


def test_a_layer_scale_is_inside_and_not_last():
    (branch,) = traced(lambda m, x: x + m.gamma * block(m, x), gamma=(4,), **BLOCK).branches
    assert branch == Branch(("B", "b"), ("A", "B", "b", "gamma"))


def test_parallel_branches():
    sides = {"A": (4, 4), "B": (4, 4)}
    assert traced(lambda m, x: (x + x @ m.A) + x @ m.B, **sides).branches == (
        Branch(("A",), ("A",)),
        Branch(("B",), ("B",)),
    )
    assert traced(lambda m, x: (x @ m.A + x @ m.B) + x, **sides).branches == (
        Branch(("B", "A"), ("A", "B")),
    )


def test_a_stream_may_start_at_a_learned_table():
    """Latents that read the data: the first branch is added to the table itself."""

    def code(m, x):
        y = m.latents.expand(3, -1, -1)
        for _ in range(2):
            scores = m.q(y) @ x[:, :, None]
            y = y + F.linear(torch.softmax(scores, 1) * x[:, None], m.W, m.b)
        return y

    parts = {"latents": (5, 4), "q": nn.Linear(4, 4), "W": (4, 4), "b": (4,)}
    branches = traced(code, **parts).branches
    assert [branch.last for branch in branches] == [("W", "b"), ("W", "b")]


def test_a_shift_by_an_adaptive_norm_is_no_branch():
    """The shift is a part of what scaled an earlier layer, so that y depends on it."""

    def code(m, x, c):
        y = x
        first, shift, scale, second = m.ada(F.silu(c)).chunk(4, -1)
        y = y + block(m, F.layer_norm(y, (4,)) * (1 + first) + second)
        return y + F.linear(F.layer_norm(y, (4,)) * (1 + scale) + shift, m.C)

    inputs = torch.randn(3, 4), torch.randn(3, 5)
    branches = traced(code, *inputs, ada=nn.Linear(5, 16), C=(4, 4), **BLOCK).branches
    assert [branch.last for branch in branches] == [("B", "b"), ("C",)]


def elman(m, x):
    """A recurrence whose inputs are projected together."""
    inputs = F.linear(x, m.A)
    state = torch.zeros(6)
    for row in inputs:
        state = torch.tanh(row + F.linear(torch.relu(F.linear(state, m.B)), m.C))
    return state


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (elman, {"A": (6, 4), "B": (5, 6), "C": (6, 5)}),
        (lambda m, x: m.cell(x)[0], {"cell": nn.GRU(4, 6)}),
        (lambda m, x: m.cell(x)[0], {"cell": nn.RNN(4, 6)}),
        (lambda m, x: m.cell(x)[0], {"cell": nn.LSTM(4, 6)}),
    ],
)
def test_recurrences_are_not_branches(code, parts):
    assert traced(code, **parts).branches == ()


def test_a_layer_that_is_used_again_has_its_branch():
    def code(m, x):
        for _ in range(3):
            x = x + block(m, x)
        return x

    assert set(traced(code, **BLOCK).branches) == {Branch(("B", "b"), ("A", "B", "b"))}


def test_a_recurrence_may_be_within_a_branch():
    def code(m, x):
        return x + F.linear(m.cell(x)[0], m.W)

    (branch,) = traced(code, W=(4, 6), cell=nn.GRU(4, 6)).branches
    assert branch.last == ("W",)


@pytest.mark.parametrize(
    "end",
    [
        lambda m, x: torch.relu(block(m, x)),
        lambda m, x: torch.relu(block(m, x)) + m.b,  # a shift alone is not all of the branch
        lambda m, x: block(m, x) + torch.relu(block(m, x)),
        lambda m, x: F.layer_norm(block(m, x), (4,)),
        lambda m, x: F.bilinear(x, x, m.T, m.b),
    ],
)
def test_branches_that_end_without_a_parameter(end):
    (branch,) = traced(lambda m, x: x + end(m, x), T=(4, 4, 4), **BLOCK).branches
    assert branch.last == ()


def test_one_factor_of_a_product_is_last():
    sides = {"A": (4, 4), "B": (4, 4)}
    (branch,) = traced(lambda m, x: x + (x @ m.A) * (x @ m.B), **sides).branches
    assert branch.last == ("B",)
    (gated,) = traced(lambda m, x: x + (x @ m.A) * torch.sigmoid(x @ m.B), **sides).branches
    assert gated.last == ("A",)


def test_embeddings_and_masks_are_not_branches():
    def code(m, i, mask):
        positions = m.P[: len(i)] + F.embedding(torch.arange(len(i)), m.W)
        x = F.embedding(i, m.W) + positions
        for _ in range(
            2
        ):  # the second time, mask and positions are ancestors of what they are added to
            x = torch.softmax((x @ m.Q) @ (x @ m.K).T + mask, -1) @ (x @ m.V) + positions
        return x

    parts = {"W": (5, 4), "P": (7, 4), "Q": (4, 4), "K": (4, 4), "V": (4, 4)}
    result = traced(code, torch.tensor([0, 1, 2]), torch.zeros(3, 3), **parts)
    assert result.branches == ()
    assert len(result.scores) == 2


def test_resnet_block():
    class Block(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.conv1, self.bn1 = (
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
            )
            self.conv2, self.bn2 = (
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
            )

        def forward(self, x):
            out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
            out += x
            return F.relu(out, inplace=True)

    result = trace(nn.Sequential(Block(4), Block(4)), torch.randn(2, 4, 6, 6))
    assert [b.last for b in result.branches] == [
        (f"{i}.bn2.weight", f"{i}.bn2.bias") for i in range(2)
    ]
    assert all(len(b.inside) == 6 for b in result.branches)


def test_writing_to_a_slice_changes_the_whole_tensor():
    def code(m, x):
        out = torch.zeros(3, 4)
        out[:, :2] = x @ m.A
        return F.linear(out * 3, m.B)

    assert traced(code, A=(4, 2), B=(2, 4)).constants == (Constant(3.0, ("A",), ("B",)),)


def test_a_recurrent_layer():
    uses = traced(lambda m, x: m.r(x), torch.randn(5, 2, 4), r=nn.LSTM(4, 3)).uses
    assert uses["r.weight_ih_l0"] == uses["r.weight_hh_l0"] == use("matrix", 1)


# the model is left as it was


def test_a_trace_restores_the_model():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))
            self.drop.eval()

        def forward(self, x):
            self.calls += 1
            return self.drop(self.norm(x)) + torch.randn(4)

    model = Counting().train()
    model.drop.eval()
    state = {name: x.clone() for name, x in model.state_dict().items()}
    random, fastpath = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    trace(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(random, torch.get_rng_state())
    assert fastpath == torch.backends.mha.get_fastpath_enabled()
    assert (model.training, model.norm.training, model.drop.training) == (True, True, False)
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())


def test_a_failed_trace_restores_the_model():
    model = Forward(lambda m, x: 1 / 0, A=(2, 2)).train()
    with pytest.raises(ZeroDivisionError):
        trace(model, torch.zeros(1))
    assert model.training


# published models

SIZE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
}
SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED: dict[str, Any] = {**SIZE, **SPECIAL, "num_key_value_heads": 2}
IDS = torch.tensor([[5, 9, 13, 7, 21, 4], [8, 3, 11, 40, 17, 6]])


def published(config: Any, attention: str = "sdpa", device: str = "cpu", **inputs: Any) -> Trace:
    with torch.device(device):
        kind = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
        model = kind.from_config(config, attn_implementation=attention)
    return trace(model, inputs or {"input_ids": IDS.to(device)})


def check_blocks(result: Trace, prefix: str, *ends: str, layers: int = LAYERS) -> None:
    """Assert that every branch ends as expected: `ends` in each layer, in order."""
    expected = [
        {f"{prefix}.{i}.{name}" for name in end.split()} for i in range(layers) for end in ends
    ]
    assert [
        set(branch.last) for branch in result.branches if branch.last[0].startswith(prefix)
    ] == expected


def check_attention(
    result: Trace, scale: float, count: int = LAYERS, normalized: bool = False
) -> None:
    assert [(s.head_size, s.normalized) for s in result.scores] == [(HEAD, normalized)] * count
    assert [s.scale for s in result.scores] == pytest.approx([scale] * count)


def constants(result: Trace, name: str) -> list[float | None]:
    return [c.value for c in result.constants if c.after == (name,)]


def test_gpt2():
    result = published(
        hf.GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY, **SPECIAL)
    )
    assert result.uses["transformer.wte.weight"] == (Use("lookup"), Use("matrix", (1,)))
    assert result.uses["transformer.wpe.weight"] == use("lookup")
    assert result.uses["transformer.h.1.attn.c_attn.weight"] == use(
        "matrix", 0
    )  # its Conv1D is stored transposed
    check_blocks(
        result,
        "transformer.h",
        "attn.c_proj.weight attn.c_proj.bias",
        "mlp.c_proj.weight mlp.c_proj.bias",
    )
    check_attention(result, HEAD**-0.5)
    assert len(result.branches) == 2 * LAYERS


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_llama(attention):
    result = published(hf.LlamaConfig(**GROUPED), attention)
    assert result.uses["model.layers.0.self_attn.k_proj.weight"] == use("matrix", 1)
    assert result.uses["lm_head.weight"] == use("matrix", 1)
    assert result.scores[1].queries == ("model.layers.1.self_attn.q_proj.weight",)
    assert result.scores[1].keys == ("model.layers.1.self_attn.k_proj.weight",)
    check_attention(result, HEAD**-0.5)
    check_blocks(result, "model.layers", "self_attn.o_proj.weight", "mlp.down_proj.weight")
    assert len(result.branches) == 2 * LAYERS
    assert len(result.branches[1].inside) == 4


@pytest.mark.parametrize(
    ("config", "attention", "normalized"),
    [
        (hf.Gemma2Config, "eager", False),
        (hf.Gemma3TextConfig, "eager", True),
        (hf.Gemma3TextConfig, "sdpa", True),
    ],
)
def test_gemma(config, attention, normalized):
    result = published(config(**GROUPED, head_dim=HEAD, query_pre_attn_scalar=16), attention)
    assert constants(result, "model.embed_tokens.weight")[0] == pytest.approx(
        math.sqrt(WIDTH), rel=1e-6
    )
    check_attention(result, 0.25, normalized=normalized)
    check_blocks(
        result,
        "model.layers",
        "post_attention_layernorm.weight",
        "post_feedforward_layernorm.weight",
    )
    assert len(result.branches) == 2 * LAYERS


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_t5(attention):
    if attention == "sdpa" and not hf.T5ForConditionalGeneration._supports_sdpa:
        pytest.skip("this version of Transformers has no such attention for T5")
    config = hf.T5Config(
        d_model=WIDTH, d_kv=HEAD, d_ff=48, num_layers=LAYERS, num_heads=HEADS, vocab_size=VOCABULARY
    )
    result = published(
        config, attention, input_ids=IDS, decoder_input_ids=IDS, attention_mask=torch.ones_like(IDS)
    )
    assert result.uses["shared.weight"] == (Use("lookup"), Use("matrix", (1,)))
    before_readout = [c for c in result.constants if c.before == ("shared.weight",)]
    assert [(c.value, c.after) for c in before_readout] == [
        (WIDTH**-0.5, ("decoder.final_layer_norm.weight",))
    ]
    check_attention(result, 1.0, count=3 * LAYERS)
    check_blocks(
        result,
        "encoder.block",
        "layer.0.SelfAttention.o.weight",
        "layer.1.DenseReluDense.wo.weight",
    )
    own, cross, mlp = (
        "layer.0.SelfAttention.o.weight",
        "layer.1.EncDecAttention.o.weight",
        "layer.2.DenseReluDense.wo.weight",
    )
    check_blocks(result, "decoder.block", own, cross, mlp)
    assert len(result.branches) == 5 * LAYERS


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bart(attention):
    config = hf.BartConfig(
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        vocab_size=VOCABULARY,
        scale_embedding=True,
        forced_eos_token_id=2,
        decoder_start_token_id=2,
        **SPECIAL,
    )
    result = published(
        config, attention, input_ids=IDS, decoder_input_ids=IDS, attention_mask=torch.ones_like(IDS)
    )
    assert constants(result, "model.shared.weight") == [math.sqrt(WIDTH)] * 2
    check_attention(result, HEAD**-0.5, count=3 * LAYERS)
    own, cross = (
        f"{kind}.out_proj.weight {kind}.out_proj.bias" for kind in ("self_attn", "encoder_attn")
    )
    check_blocks(result, "model.encoder.layers", own, "fc2.weight fc2.bias")
    check_blocks(result, "model.decoder.layers", own, cross, "fc2.weight fc2.bias")
    assert len(result.branches) == 5 * LAYERS


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bert(attention):
    model = hf.AutoModelForMaskedLM.from_config(
        hf.BertConfig(**SIZE), attn_implementation=attention
    )
    result = trace(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    assert result.uses["bert.embeddings.word_embeddings.weight"] == (
        Use("lookup"),
        Use("matrix", (1,)),
    )
    attention_end = "attention.output.dense.weight attention.output.dense.bias"
    check_blocks(
        result, "bert.encoder.layer", attention_end, "output.dense.weight output.dense.bias"
    )
    check_attention(result, HEAD**-0.5)
    assert len(result.branches) == 2 * LAYERS


def test_vit():
    config = hf.ViTConfig(**{**SIZE, "image_size": 16, "patch_size": 4})
    result = trace(hf.ViTForImageClassification(config), torch.randn(2, 3, 16, 16))
    patches = next(
        name for name in result.uses if name.endswith("patch_embeddings.projection.weight")
    )
    assert result.uses[patches] == use("convolution", 1, 2, 3)
    assert result.uses["vit.embeddings.position_embeddings"] == use("shift")
    check_attention(result, HEAD**-0.5)
    assert len(result.branches) == 2 * LAYERS
    assert all(result.uses[b.last[0]] == use("matrix", 1) for b in result.branches)


def test_opt():
    config = hf.OPTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_dim=48,
        vocab_size=VOCABULARY,
        word_embed_proj_dim=WIDTH,
        **SPECIAL,
    )
    result = published(config)
    assert {u.kind for u in result.uses["model.decoder.embed_positions.weight"]} == {"lookup"}
    check_attention(result, HEAD**-0.5)  # applied to the queries, not inside the kernel
    own = "self_attn.out_proj.weight self_attn.out_proj.bias"
    check_blocks(result, "model.decoder.layers", own, "fc2.weight fc2.bias")
    assert len(result.branches) == 2 * LAYERS


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_granite(device):
    scaled: dict[str, Any] = {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.01,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    }
    result = published(hf.GraniteConfig(**GROUPED, **scaled), device=device)
    assert constants(result, "model.embed_tokens.weight") == [12.0]
    assert constants(result, "lm_head.weight") == [0.125]
    assert constants(result, "model.layers.1.mlp.down_proj.weight") == [0.22]
    check_attention(result, 0.01)
    check_blocks(result, "model.layers", "self_attn.o_proj.weight", "mlp.down_proj.weight")
    assert len(result.branches) == 2 * LAYERS


def test_constants_in_meta_tensors_cannot_be_read():
    result = published(hf.Gemma3TextConfig(**GROUPED, head_dim=HEAD), device="meta")
    assert constants(result, "model.embed_tokens.weight") == [None]
    assert len(result.branches) == 2 * LAYERS


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_qwen3(attention):
    result = published(hf.Qwen3Config(**GROUPED, head_dim=HEAD), attention)
    assert result.scores[0].queries == ("model.layers.0.self_attn.q_norm.weight",)
    assert result.scores[0].keys == ("model.layers.0.self_attn.k_norm.weight",)
    check_attention(result, HEAD**-0.5, normalized=True)
    check_blocks(result, "model.layers", "self_attn.o_proj.weight", "mlp.down_proj.weight")


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm", "eager"])
def test_mixtral(experts):
    config = hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)
    model = hf.MixtralForCausalLM._from_config(config, experts_implementation=experts)
    result = trace(model, {"input_ids": IDS})
    assert result.uses["model.layers.0.mlp.experts.gate_up_proj"] == use("matrix", 2)
    assert result.uses["model.layers.0.mlp.experts.down_proj"] == use("matrix", 2)
    assert result.uses["model.layers.0.mlp.gate.weight"] == use("matrix", 1)
    check_attention(result, HEAD**-0.5)
    check_blocks(result, "model.layers", "self_attn.o_proj.weight", "mlp.experts.down_proj")
    assert len(result.branches) == 2 * LAYERS


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(norm_first):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True, norm_first=norm_first)
    result = trace(
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), torch.randn(2, 5, WIDTH)
    )
    assert result.uses["layers.0.self_attn.in_proj_weight"] == use("matrix", 1)
    check_attention(result, HEAD**-0.5)
    own = "self_attn.out_proj.weight self_attn.out_proj.bias"
    check_blocks(result, "layers", own, "linear2.weight linear2.bias")
    assert len(result.branches) == 2 * LAYERS


def test_every_layer_of_a_deep_model_has_its_branches():
    config = hf.GPT2Config(n_embd=64, n_layer=12, n_head=4, vocab_size=VOCABULARY, **SPECIAL)
    model = hf.GPT2LMHeadModel(config)
    assert len(trace(model, {"input_ids": IDS}).branches) == 24
