"""Coordinate checks in half and double precision."""

import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.nn import functional

import orderone as o1
from orderone.measure.check import Check
from orderone.measure.judge.verdict import Verdict

GENERATOR = torch.Generator().manual_seed(0)
BATCH = (
    torch.randn(64, 16, generator=GENERATOR),
    torch.randint(4, (64,), generator=GENERATOR),
)
WIDTHS = [32, 64, 128]


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )


def _check(build, precision: str, **options: object) -> Check:
    keywords = {"lr": 1e-2, "batches": BATCH, "seeds": 2, "steps": 3, **options}
    return o1.coord_check(build, WIDTHS, precision=precision, **keywords)  # pyright: ignore[reportArgumentType]


def _exponents(check: Check, quantity: str) -> dict[tuple[str, int], float]:
    lines = [line for line in check.judgements if line.quantity == quantity]
    return {(line.module, line.step): line.exponent for line in lines}


@pytest.fixture(scope="module")
def single() -> Check:
    return _check(_mlp, "float32")


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_planned_models_pass_with_the_exponents_of_single_precision(precision, single):
    check = _check(_mlp, precision)
    assert check.passed, str(check)
    assert check.provenance["precision"] == precision
    assert not check.unjudged
    for quantity in ("change", "update", "output gradient"):
        expected = _exponents(single, quantity)
        assert expected
        assert _exponents(check, quantity) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_rule_that_does_not_transfer_fails(precision):
    assert _check(_mlp, precision, rule="standard").verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("precision", "passes"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("float64", torch.float64),
    ],
)
@pytest.mark.parametrize("batches", ["one", "several"])
def test_all_passes_are_in_this_precision(precision, passes, batches):
    seen: set[torch.dtype] = set()
    kept: set[torch.dtype] = set()

    def note(module: nn.Module, _: object, output: torch.Tensor) -> None:
        if torch.is_grad_enabled() or batches == "several":
            seen.add(output.dtype)
            kept.update(p.dtype for p in module.parameters())

    def hooked(width: int) -> nn.Module:
        model = _mlp(width)
        model.get_submodule("2").register_forward_hook(note)
        return model

    data = BATCH
    if batches == "several":
        other = (BATCH[0].flip(0), BATCH[1].flip(0))
        data = [BATCH, other, BATCH]
    _check(hooked, precision, batches=data, optimizer="sgd", seeds=1)
    assert passes in seen
    assert kept == {torch.float64 if precision == "float64" else torch.float32}


class _Attention(nn.Module):
    """Attention whose bias of keys has no effect, and so a gradient of rounding errors."""

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x.view(len(x), 4, 4))
        q, k, v = (part(h).unsqueeze(1) for part in (self.q, self.k, self.v))
        h = functional.scaled_dot_product_attention(q, k, v, scale=16 / h.shape[-1])
        return self.out(h.squeeze(1).mean(1))


def test_gradients_of_rounding_errors_are_not_judged():
    check = _check(_Attention, "bfloat16")
    updates = {name for name, _ in _exponents(check, "update")}
    assert "k.bias" not in updates
    assert updates >= {"q.bias", "k.weight", "q.weight", "v.weight", "v.bias", "out.weight"}
    assert check.verdict != Verdict.FAIL


def test_changes_below_the_rounding_of_outputs_are_inconclusive():
    tiny = _check(_mlp, "bfloat16", lr=1e-6, optimizer="adamw")
    changes = [line for line in tiny.judgements if line.quantity == "change"]
    assert tiny.verdict == Verdict.UNCLEAR
    assert {line.verdict for line in changes} == {Verdict.UNCLEAR}
    assert all("rounding" in line.cause for line in changes)
    assert _check(_mlp, "float32", lr=1e-6, optimizer="adamw").passed


def test_bfloat16_weights_have_the_rounding_of_bfloat16():
    def build(width: int) -> nn.Module:
        return _mlp(width).bfloat16()

    batch = (BATCH[0].bfloat16(), BATCH[1])
    check = _check(build, "float32", batches=batch, lr=1e-6)
    assert check.verdict == Verdict.UNCLEAR


def test_large_losses_in_float16_find_a_scale_that_does_not_overflow():
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 1e4 * functional.cross_entropy(output.float(), target)

    check = _check(_mlp, "float16", loss=loss)
    assert check.passed, str(check)
    expected = _exponents(_check(_mlp, "float32", loss=loss), "output gradient")
    assert _exponents(check, "output gradient") == pytest.approx(expected, abs=0.05)


def test_wrong_precisions_are_refused():
    with refuses("unknown-name", argument="precision"):
        _check(_mlp, "int8")
    with refuses("float16-parameters", argument="precision"):
        _check(lambda width: _mlp(width).half(), "float16", batches=(BATCH[0].half(), BATCH[1]))


def test_axes_of_training_take_a_precision():
    batches = []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(16, 16, generator=generator)
        batches.append((x, torch.randint(4, (16,), generator=generator)))
    check = o1.coord_check(
        lambda: _mlp(32),
        batch_sizes=[4, 8, 16],
        batches=batches,
        steps=12,
        seeds=1,
        lr=1e-2,
        precision="bfloat16",
    )
    assert check.provenance["precision"] == "bfloat16"
    assert check.verdict != Verdict.FAIL
