"""Packed projections of queries, keys and values with a head size that grows."""

# pyright: reportArgumentType=false
# pyright: reportIndexIssue=false
# pyright: reportAttributeAccessIssue=false

import copy

import pytest
import torch
from support.errors import refuses
from support.nanogpt import NanoGPT, rows_of, tokens, unpacked
from torch import nn
from torch.nn import functional

import orderone as o1
from orderone.observe.trace import trace
from orderone.observe.trace.packed import packed_scores
from orderone.optimizers import row_rates
from orderone.planning import adjustments
from orderone.training.stacked.optimizer import StackedOptimizer

NARROW, WIDE = 8, 32  # the head size grows by 4: scores need a factor 1/2


def make(width, **options):
    torch.manual_seed(width)
    return NanoGPT(width, **options).double()


def jittered(model):
    """Give every tensor random values, biases and gains too, so that every setting matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise)
    return model


def planned(width, optimizer, packing, **options):
    inputs = tokens()
    return o1.plan(
        jittered(make(width, packing=packing)),
        base=jittered(make(NARROW, packing=packing)),
        optimizer=optimizer,
        lr=0.02,
        inputs=inputs,
        **options,
    )


def losses(model, optimizer, steps=4):
    result = []
    for step in range(steps):
        batch = tokens(step)
        optimizer.zero_grad()
        loss = model(batch, batch.flip(0))
        loss.backward()
        optimizer.step()
        result.append(loss.detach())
    return torch.stack(result)


# --- the same network, packed and separate --------------------------------------------------------

DECAY = {"weight_decay": 0.3}
CASES = [
    ("adamw", "packed", DECAY),
    ("adamw", "by head", DECAY),
    ("adamw", "values first", {**DECAY, "decay": "proportional", "eps": 1e-3}),
    ("adam", "packed", {**DECAY, "eps": 1e-3}),
    ("sgd", "packed", DECAY),
    ("lion", "packed", DECAY),
    ("rmsprop", "by head", DECAY),
    ("nadam", "packed", {**DECAY, "eps": 1e-3}),
]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize(("optimizer", "packing", "options"), CASES)
def test_a_packed_network_trains_as_the_separate_one(optimizer, packing, options, width):
    packed = planned(width, optimizer, packing, **options)
    separate = planned(width, optimizer, "separate", **options)
    model = packed.apply()
    other = separate.apply(fresh=True)
    other.load_state_dict(unpacked(model))
    momentum = {"momentum": 0.9} if optimizer in ("sgd", "rmsprop") else {}
    ours = losses(model, packed.optimizer(**momentum))
    theirs = losses(other, separate.optimizer(**momentum))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for name, tensor in unpacked(model).items():
        if name.endswith("k.bias"):
            continue  # softmax ignores it: its gradient is rounding noise, which Adam normalizes
        torch.testing.assert_close(tensor, other.state_dict()[name], rtol=1e-7, atol=1e-10)
    assert (ours[0] - ours[-1]).abs() > 1e-4  # it did train


@pytest.mark.parametrize("packing", ["packed", "by head", "values first"])
def test_queries_start_smaller_and_the_plan_shows_it(packing):
    plan = o1.plan(make(WIDE, packing=packing), base=make(NARROW, packing=packing), inputs=tokens())
    row = plan["h.1.attn.c_attn.weight"]
    queries, keys = row.blocks
    assert (queries.kind, keys.kind) == ("queries", "keys")
    rows = [index for first, last in queries.ranges for index in range(first, last)]
    assert rows == sorted(rows_of(packing, WIDE, 2)["q"].tolist())
    assert queries.lr == pytest.approx(row.lr / 2)
    assert queries.lr * queries.weight_decay == pytest.approx(row.lr * row.weight_decay)
    assert "rows of queries" in str(plan)
    assert plan.undone == ()
    before = copy.deepcopy(plan.bound().state_dict())
    after = plan.apply().state_dict()
    weight = "h.1.attn.c_attn.weight"
    scale = after[weight] / before[weight]
    parts = {part: scale[index] for part, index in rows_of(packing, WIDE, 2).items()}
    assert parts["q"].mean() == pytest.approx(float(parts["v"].mean()) / 2)
    assert parts["k"].mean() == pytest.approx(float(parts["v"].mean()))


def test_at_base_size_and_with_more_heads_nothing_changes():
    same = o1.plan(make(NARROW), base=make(NARROW), inputs=tokens())
    heads = o1.plan(make(WIDE, heads=8), base=make(NARROW), inputs=tokens())
    for plan in (same, heads):
        assert not any(row.blocks for row in plan.rows)
        assert all("rows" not in group for group in plan.param_groups())


# --- which rows are queries -----------------------------------------------------------------------


class Grouped(nn.Module):
    """Four query heads, two heads of keys and values, in groups [q, q, k, v]."""

    def __init__(self, width):
        super().__init__()
        self.size = width // 4
        self.words = nn.Embedding(48, width)
        self.qkv = nn.Linear(width, 2 * 4 * self.size)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, 48)

    def forward(self, ids):
        x = self.words(ids)
        batch, time, _ = x.shape
        y = self.qkv(x).view(batch, time, 2, 4, self.size)
        q = y[..., :2, :].reshape(batch, time, 4, self.size).transpose(1, 2)
        k, v = (y[..., at, :].repeat_interleave(2, 2).transpose(1, 2) for at in (2, 3))
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.head(x + self.out(y.transpose(1, 2).reshape(batch, time, -1)))


class Vision(nn.Module):
    """qkv.reshape(B, N, 3, H, d), with a norm of queries and keys if asked for."""

    def __init__(self, width, norm=None):
        super().__init__()
        self.words = nn.Embedding(48, width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, 48)
        self.norm = norm
        if norm == "gain":
            self.q_norm = nn.LayerNorm(width // 2)
            self.k_norm = nn.LayerNorm(width // 2)

    def forward(self, ids):
        x = self.words(ids)
        batch, time, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, time, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        if self.norm == "gain":
            q, k = self.q_norm(q), self.k_norm(k)
        if self.norm == "plain":
            q, k = (functional.layer_norm(part, part.shape[-1:]) for part in (q, k))
        y = ((q * (width // 2) ** -0.5) @ k.mT).softmax(-1) @ v
        return self.head(x + self.out(y.transpose(1, 2).reshape(batch, time, width)))


class Torch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(48, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 4 * width, batch_first=True)
        self.head = nn.Linear(width, 48)

    def forward(self, ids):
        return self.head(self.layer(self.words(ids)))


class SharedHalves(nn.Module):
    """Queries and keys are the same rows: no factor can be folded into one of them."""

    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(48, width)
        self.qk = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, 48)

    def forward(self, ids):
        q, v = self.qk(self.words(ids)).chunk(2, -1)
        q = q[:, None]
        return self.head(functional.scaled_dot_product_attention(q, q, v[:, None])[:, 0])


class Convolved(nn.Module):
    """Attention between pixels, with a packed convolution, as in networks for diffusion."""

    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(48, width)
        self.qkv = nn.Conv1d(width, 3 * width, 1)
        self.out = nn.Conv1d(width, width, 1)
        self.head = nn.Linear(width, 48)

    def forward(self, ids):
        x = self.words(ids).mT
        q, k, v = self.qkv(x).chunk(3, 1)
        weights = torch.einsum("bct,bcs->bts", q / q.shape[1] ** 0.5, k).softmax(-1)
        return self.head((x + self.out(torch.einsum("bts,bcs->bct", weights, v))).mT)


def blocks(plan, name):
    return [(block.kind, block.axis, block.ranges) for block in plan[name].blocks]


def test_groups_of_heads():
    plan = o1.plan(Grouped(32), base=Grouped(8), inputs=tokens())
    expected = [("queries", 0, ((0, 16), (32, 48))), ("keys", 0, ((16, 24), (48, 56)))]
    assert blocks(plan, "qkv.weight") == expected
    assert blocks(plan, "qkv.bias") == expected


def test_eager_vision_attention():
    plan = o1.plan(Vision(32), base=Vision(8), inputs=tokens())
    assert blocks(plan, "qkv.weight") == [("queries", 0, ((0, 32),)), ("keys", 0, ((32, 64),))]


def test_packed_convolutions():
    plan = o1.plan(Convolved(32), base=Convolved(8), inputs=tokens())
    expected = [("queries", 0, ((0, 32),)), ("keys", 0, ((32, 64),))]
    assert blocks(plan, "qkv.weight") == expected
    assert blocks(plan, "qkv.bias") == expected
    assert plan.undone == ()


@pytest.mark.parametrize("inputs", [None, tokens()])
def test_attention_of_torch(inputs):
    plan = o1.plan(Torch(32), base=Torch(8), inputs=inputs)
    expected = [("queries", 0, ((0, 32),)), ("keys", 0, ((32, 64),))]
    assert blocks(plan, "layer.self_attn.in_proj_weight") == expected
    assert blocks(plan, "layer.self_attn.in_proj_bias") == expected
    assert plan.undone == ()


def test_norms_of_queries():
    gains = o1.plan(Vision(32, "gain"), base=Vision(8, "gain"), inputs=tokens())
    assert gains["qkv.weight"].blocks == ()
    assert gains["q_norm.weight"].constant == pytest.approx(0.5)
    plain = o1.plan(Vision(32, "plain"), base=Vision(8, "plain"), inputs=tokens())
    assert plain["qkv.weight"].blocks == ()
    assert any("[attention-scale]" in note for note in plain.undone)


def test_rows_that_are_queries_and_keys_at_once_take_no_factor():
    plan = o1.plan(SharedHalves(32), base=SharedHalves(8), inputs=tokens())
    assert plan["qk.weight"].blocks == ()
    assert any("[attention-scale]" in note for note in plan.undone)


def test_transposed_matrices():
    transformers = pytest.importorskip("transformers")

    def gpt2(width):
        config = transformers.GPT2Config(
            vocab_size=48, n_embd=width, n_layer=1, n_head=4, n_positions=16
        )
        return transformers.GPT2LMHeadModel(config)

    plan = o1.plan(gpt2(256), base={"n_embd": 64})
    expected = [("queries", 1, ((0, 256),)), ("keys", 1, ((256, 512),))]
    assert blocks(plan, "transformer.h.0.attn.c_attn.weight") == expected
    bias = [("queries", 0, ((0, 256),)), ("keys", 0, ((256, 512),))]
    assert blocks(plan, "transformer.h.0.attn.c_attn.bias") == bias
    model = plan.apply()
    weight = model.transformer.h[0].attn.c_attn.weight.detach()
    ratio = float(weight[:, :256].std() / weight[:, 512:].std())
    assert ratio == pytest.approx(0.5, rel=0.02)
    optimizer = plan.optimizer()
    before = weight.clone()
    ids = tokens()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    step = (weight - before).abs().median(0).values
    assert float(step[:256].median() / step[512:].median()) == pytest.approx(0.5, rel=0.05)


def test_heads_interleaved_by_hugging_face():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}

    def neox(width):
        config = transformers.GPTNeoXConfig(
            hidden_size=width, intermediate_size=4 * width, max_position_embeddings=16, **sizes
        )
        return transformers.GPTNeoXForCausalLM(config)

    plan = o1.plan(neox(256), base={"hidden_size": 64, "intermediate_size": 256})
    [name] = [row.name for row in plan.rows if row.name.endswith("query_key_value.weight")]
    expected = [
        ("queries", 0, ((0, 128), (384, 512))),
        ("keys", 0, ((128, 256), (512, 640))),
    ]
    assert blocks(plan, name) == expected


def test_the_evidence_is_numeric():
    model = make(NARROW)
    fan_in = {"h.1.attn.c_attn.weight": (1,)}
    [scores] = packed_scores(model, tokens(), fan_in).values()
    assert scores.queries["h.1.attn.c_attn.weight"].ranges == ((0, NARROW),)
    assert scores.keys["h.1.attn.c_attn.bias"].ranges == ((NARROW, 2 * NARROW),)
    assert trace(model, tokens()).uses["h.1.attn.c_attn.weight"][0].fan_in == (1,)
    assert all(parameter.grad is None for parameter in model.parameters())


# --- optimizers -----------------------------------------------------------------------------------


class Halving(torch.optim.AdamW):
    """A subclass whose step calls that of its base class: hooks are called twice."""

    def step(self, closure=None):
        return super().step(closure)


def trained(optimizer_of, steps=3, with_closure=False):
    plan = planned(WIDE, "adamw", "packed", **DECAY)
    model = plan.apply()
    optimizer = optimizer_of(plan)
    for step in range(steps):
        batch = tokens(step)

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch, batch.flip(0))
            loss.backward()
            return loss

        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            gradient = model.h[0].attn.c_attn.weight.grad.clone()
            optimizer.step()
            assert torch.equal(gradient, model.h[0].attn.c_attn.weight.grad)
    return model.state_dict()


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def of_param_groups(plan):
    return torch.optim.AdamW(plan.param_groups())


def test_who_constructs_the_optimizer_makes_no_difference():
    reference = trained(lambda plan: plan.optimizer())
    assert same(reference, trained(of_param_groups))
    assert same(reference, trained(lambda plan: Halving(plan.param_groups())))
    assert same(reference, trained(of_param_groups, with_closure=True))

    def without_rows(plan):
        groups = plan.param_groups()
        for group in groups:
            group.pop("rows", None)
        return torch.optim.AdamW(groups)

    assert not same(reference, trained(without_rows))


def test_resumed_and_copied_optimizers(tmp_path):
    plan = planned(WIDE, "adamw", "packed", **DECAY)
    model = plan.apply()
    optimizer = plan.optimizer()
    losses(model, optimizer, 2)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed, copied = copy.deepcopy(model), copy.deepcopy((model, optimizer))
    fresh = plan.attach(resumed).optimizer()
    fresh.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
    expected = losses(model, optimizer, 3)
    assert torch.equal(expected, losses(resumed, fresh, 3))
    assert torch.equal(expected, losses(*copied, 3))


def test_an_interrupted_step_harms_no_later_one():
    plan = planned(WIDE, "adamw", "packed", **DECAY)
    model = plan.apply()
    optimizer = plan.optimizer()
    losses(model, optimizer, 1)
    other, again = copy.deepcopy((model, optimizer))
    row_rates._prepare(optimizer)  # a step begins, and is interrupted
    assert torch.equal(losses(model, optimizer, 2), losses(other, again, 2))


def test_the_guard_wants_the_rates_of_rows():
    plan = planned(WIDE, "adamw", "packed")
    plan.apply()
    plan.check(plan.optimizer())
    plan.check(of_param_groups(plan))
    groups = plan.param_groups()
    for group in groups:
        group.pop("rows", None)
    with refuses("rows-without-rates"):
        plan.check(torch.optim.AdamW(groups))
    other = plan.optimizer()
    for group in other.param_groups:
        if "rows" in group:
            group["params"] = [nn.Parameter(torch.ones(5))]
            group["params"][0].grad = torch.ones(5)
    with refuses("rows-of-other-shape"):
        other.step()


def test_muon_scales_the_rows_of_its_packed_update():
    plan = o1.plan(
        make(WIDE), base=make(NARROW), optimizer="muon", lr=0.02, weight_decay=0.0, inputs=tokens()
    )
    model = plan.apply()
    weight = model.h[0].attn.c_attn.weight
    before = weight.detach().clone()
    whole = before.clone().requires_grad_()
    batch = tokens()
    model(batch, batch.flip(0)).backward()
    whole.grad = weight.grad.clone()
    torch.optim.Muon([whole], lr=plan["h.0.attn.c_attn.weight"].lr, weight_decay=0.0).step()
    plan.optimizer().step()
    expected = (whole - before).detach()
    expected[:WIDE] /= 2
    torch.testing.assert_close((weight - before).detach(), expected)


def test_a_saved_plan_has_the_rows(tmp_path):
    plan = planned(WIDE, "adamw", "packed")
    plan.save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json")
    assert loaded.rows == plan.rows
    attached = loaded.attach(plan.bound())
    attached.check(attached.optimizer())


# --- the check ------------------------------------------------------------------------------------


def score_changes(**options):
    batch = (tokens(0, 8), tokens(0, 8).flip(0))
    check = o1.coord_check(
        lambda width: NanoGPT(width, **options),
        widths=[16, 32, 64, 128],
        rule="mup",
        optimizer="adamw",
        lr=0.02,
        batches=[batch] * 6,
        steps=6,
        seeds=2,
    )
    lines = check.exponents
    of_scores = lines[(lines.quantity == "score change") & (lines.module == "h.0.attn")]
    return check, float(of_scores.exponent.iloc[-1])


def test_the_check_passes_and_scores_do_not_grow():
    check, exponent = score_changes()
    assert check.passed
    assert abs(exponent) < 0.2


def test_the_check_fails_without_the_rows(monkeypatch):
    monkeypatch.setattr(adjustments, "_divide_packed_scores", lambda *_: None)
    check, exponent = score_changes()
    assert not check.passed
    assert exponent > 0.35


# --- stacked --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion"])
def test_stacked_steps_equal_stand_alone_ones(optimizer):
    plans = [
        o1.plan(
            jittered(make(WIDE)),
            base=jittered(make(NARROW)),
            optimizer=optimizer,
            lr=lr,
            weight_decay=0.3,
            inputs=tokens(),
        )
        for lr in (0.01, 0.03)
    ]
    models = [plan.apply() for plan in plans]
    optimizers = [plan.optimizer() for plan in plans]
    names = [{p: name for name, p in model.named_parameters()} for model in models]
    stacked = {
        name: torch.stack([dict(model.named_parameters())[name].detach() for model in models])
        for name in names[0].values()
    }
    together = StackedOptimizer(stacked, optimizers, names)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        gradients = {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for name, p in stacked.items()
        }
        for member, (model, alone) in enumerate(zip(models, optimizers, strict=True)):
            for name, p in model.named_parameters():
                p.grad = gradients[name][member].clone()
            alone.step()
        together.step(gradients)
    for member, model in enumerate(models):
        for name, p in model.named_parameters():
            torch.testing.assert_close(stacked[name][member], p.detach(), rtol=1e-9, atol=1e-12)
