"""Networks scaled by hand, with and without one fault each: the judge finds the fault and names it.

`by_hand` writes muP for any small network from the growth of its shapes alone, without a plan.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

import orderone as o1
from orderone.core.errors import code_of
from orderone.observe.quantities import Quantity
from orderone.optimizers.combined import CombinedOptimizer

WIDTHS = (32, 64, 128, 256)
LR = {"adam": 1e-2, "sgd": 0.1, "muon": 0.02}
FEATURES, CLASSES, LENGTH, HEAD = 16, 10, 8, 8


def _series() -> tuple[Tensor, Tensor]:
    x = torch.randn(16, LENGTH, FEATURES, generator=torch.Generator().manual_seed(0))
    return x, x.mean(1)[:, :CLASSES].argmax(-1)


def _tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 40, (8, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


SERIES, TOKENS = _series(), _tokens()


# --- muP by hand ----------------------------------------------------------------------------------


def by_hand(
    kind: Callable[[int], nn.Module],
    width: int,
    law: str = "adam",
    rates: Mapping[str, float] | None = None,
    starts: Mapping[str, float] | None = None,
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Return a network in muP, and one group for each tensor.

    `rates` and `starts` are powers of the width by which a tensor's rate or initial size is wrong.
    """
    model = kind(width)
    base = {name: tensor.shape for name, tensor in kind(WIDTHS[0]).named_parameters()}
    growth = width / WIDTHS[0]
    groups = []
    for name, tensor in model.named_parameters():
        grown = [a > b for a, b in zip(tensor.shape, base[name], strict=True)]
        fan_in = len(grown) > 1 and grown[1] and "table" not in name
        fan_out = grown[0] or ("table" in name and grown[-1])
        adam = growth ** -float(fan_in)
        sgd = growth ** (float(fan_out) - float(fan_in))
        if fan_in and not fan_out:  # nn.Linear starts like n^-1/2
            tensor.data.mul_(growth**-0.5)
        tensor.data.mul_(growth ** (starts or {}).get(name, 0.0))
        rate = {"adam": adam, "sgd": sgd}[law] * growth ** (rates or {}).get(name, 0.0)
        groups.append({"params": [tensor], "lr": LR[law] * rate})
    return model, groups


def adam(kind: Callable[[int], nn.Module], **faults: Any) -> Callable[[int], Any]:
    def build(width: int) -> Any:
        model, groups = by_hand(kind, width, **faults)
        return model, torch.optim.Adam(groups)

    return build


def sgd(kind: Callable[[int], nn.Module], momentum: float = 0.0, **faults: Any):
    def build(width: int) -> Any:
        model, groups = by_hand(kind, width, "sgd", **faults)
        return model, torch.optim.SGD(groups, momentum=momentum)

    return build


def check(build: Callable[[int], Any], batch: Any = SERIES, **options: Any) -> o1.measure.Check:
    settings = {"widths": WIDTHS, "seeds": 2, "lr": LR["adam"], "batches": batch}
    return o1.coord_check(build, **{**settings, **options})


def fails(result: o1.measure.Check, code: str, *names: str) -> None:
    """Assert that a check fails, and that its first cause has the code and names the tensors."""
    assert result.verdict == "FAIL", str(result)
    assert code_of(result.causes[0]) == code, result.causes
    for name in names:
        assert name in result.causes[0], result.causes


# --- networks -------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.hid = nn.Linear(width, width)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.hid(torch.relu(self.inp(x))))
        return self.out(x.mean(1))


class Heads(nn.Module):
    """Heads of 8 channels that grow in number."""

    power = 0.0  # scores are divided by this power of the width, beside the root of the head size

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.norm = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.last = nn.LayerNorm(width)
        self.out = nn.Linear(width, CLASSES)
        self.register_buffer("scale", torch.tensor((WIDTHS[0] / width) ** self.power))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD) * self.scale
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))
        return self.out(self.last(x).mean(1))


class DividedByWidth(Heads):
    power = 1.0


class DividedByRoot(Heads):
    power = 0.5


class SoftmaxOverChannels(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hid(torch.relu(self.inp(x))).softmax(-1).mean(1))


class UnitVectors(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x = functional.normalize(torch.relu(self.inp(x)), dim=-1)
        return self.out(torch.relu(self.hid(x)).mean(1))


class WithBranch(Plain):
    """A residual branch that a buffer multiplies."""

    power = 1.0

    def __init__(self, width: int):
        super().__init__(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.register_buffer("scale", torch.tensor((WIDTHS[0] / width) ** self.power))

    def forward(self, x: Tensor) -> Tensor:
        x = self.hid(torch.relu(self.inp(x)))
        x = x + self.scale * self.down(torch.relu(self.up(x)))
        return self.out(x.mean(1))


class ShortBranch(Plain):
    """A branch of one matrix: its sizes and rates look like those of another gauge."""

    def __init__(self, width: int):
        super().__init__(width)
        self.down = nn.Linear(width, width)
        self.register_buffer("scale", torch.tensor(WIDTHS[0] / width))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.hid(torch.relu(self.inp(x))))
        return self.out((x + self.scale * self.down(x)).mean(1))


class HealthyBranch(WithBranch):
    power = 0.0


class Modulated(Plain):
    """Gains that a matrix writes, which starts at zero (adaLN)."""

    def __init__(self, width: int):
        super().__init__(width)
        self.gains = nn.Linear(FEATURES, width)
        self.zero = nn.Linear(width, width)
        for layer in (self.gains, self.zero):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.inp(x)) * (1 + self.gains(x.flip(-1)))
        y = torch.relu(self.hid(y))
        return self.out((y + self.zero(y)).mean(1))


class Lora(Plain):
    def __init__(self, width: int):
        super().__init__(width)
        self.hid.requires_grad_(False)
        self.down = nn.Linear(width, 4, bias=False)
        self.up = nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inp(x))
        return self.out(torch.relu(self.hid(x) + self.up(self.down(x))).mean(1))


class Offset(Plain):
    """A gain that is stored as an offset from one."""

    def __init__(self, width: int):
        super().__init__(width)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inp(x)) * (1 + self.gain)
        return self.out(torch.relu(self.hid(x)).mean(1))


class Mixing(Plain):
    """Tokens are mixed by a matrix of fixed size."""

    def __init__(self, width: int):
        super().__init__(width)
        self.mix = nn.Linear(LENGTH, LENGTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inp(x))
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return self.out(torch.relu(self.hid(x)).mean(1))


class Factored(nn.Module):
    """A table of fixed size, and a matrix from it into the width (ALBERT)."""

    def __init__(self, width: int):
        super().__init__()
        self.small = nn.Embedding(40, 8)
        self.project = nn.Linear(8, width)
        self.hid = nn.Linear(width, width)
        self.out = nn.Linear(width, 40)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.relu(self.hid(torch.relu(self.project(self.small(ids))))))


class Tied(nn.Module):
    """A tied head with the multiplier 1/n behind it, or before it."""

    behind = True

    def __init__(self, width: int):
        super().__init__()
        self.table = nn.Embedding(40, width)
        self.hid = nn.Linear(width, width)
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, 40, bias=False)
        self.head.weight = self.table.weight
        self.factor = WIDTHS[0] / width

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = self.last(x + torch.relu(self.hid(x)))
        if self.behind:
            return self.head(x) * self.factor
        return self.head(x * self.factor)


class TiedBefore(Tied):
    behind = False


# --- too small ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (DividedByWidth, "attention-not-scaled"),
        (DividedByRoot, "attention-not-scaled"),
        (SoftmaxOverChannels, "shrinking-input"),
        (UnitVectors, "shrinking-input"),
    ],
)
@pytest.mark.parametrize("planned", [True, False])
def test_what_is_too_small_fails(kind, code, planned):
    fails(check(kind if planned else adam(kind)), code)


@pytest.mark.parametrize("kind", [WithBranch, ShortBranch])
@pytest.mark.parametrize("scaled", [adam, sgd])
def test_a_branch_that_is_too_small_fails(kind, scaled):
    fails(check(scaled(kind)), "shrinking-output", "down.weight")


def test_a_multiplier_that_rates_and_sizes_compensate_passes():
    powers = {"down.weight": 1.0, "down.bias": 1.0}
    result = check(adam(ShortBranch, rates=powers, starts=powers))
    assert result.passed, str(result)


@pytest.mark.parametrize("kind", [Plain, Heads, HealthyBranch, Modulated, Offset, Mixing])
@pytest.mark.parametrize("scaled", [adam, sgd, None])
def test_the_same_networks_without_the_fault_pass(kind, scaled):
    result = check(scaled(kind) if scaled else kind)
    assert result.passed, str(result)
    assert result.unjudged == ()


# --- learning rates -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tensor", "powers"),
    [
        (Modulated, "gains.weight", (-1.0, 0.5)),
        (Modulated, "zero.weight", (-1.0, 1.0)),
        (Modulated, "zero.bias", (-1.0,)),
        (Offset, "gain", (-1.0, 1.0)),
        (Mixing, "mix.weight", (-1.0, 0.5)),
        (Plain, "out.bias", (-0.5, 1.0)),
        (Plain, "hid.weight", (-0.5, 0.5)),
    ],
)
def test_the_rate_of_every_kind_of_tensor_is_judged(kind, tensor, powers):
    for power in powers:
        result = check(adam(kind, rates={tensor: power}))
        fails(result, "lr-not-scaled", tensor)


def test_the_rate_of_lora_is_judged():
    healthy = check(adam(Lora), frozen="hid.*")
    assert healthy.passed, str(healthy)
    fails(
        check(adam(Lora, rates={"up.weight": -1.0}), frozen="hid.*"), "lr-not-scaled", "up.weight"
    )


def test_the_rate_of_a_factored_table_is_judged():
    assert check(adam(Factored), TOKENS).passed
    slow = check(adam(Factored, rates={"small.weight": -1.0}), TOKENS)
    fails(slow, "lr-not-scaled", "small.weight")


@pytest.mark.parametrize("tensor", ["inp.weight", "hid.weight", "out.weight", "hid.bias"])
@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_half_powers_are_found_with_sgd(tensor, power):
    result = check(sgd(Plain, rates={tensor: power}))
    code = "readout-not-scaled" if tensor == "out.weight" else "lr-not-scaled"
    fails(result, code, tensor)


def test_a_group_with_rate_zero_fails():
    def build(width):
        model, groups = by_hand(Plain, width)
        groups[2]["lr"] = 0.0
        return model, torch.optim.Adam(groups)

    fails(check(build), "frozen-tensor", "hid.weight")


@pytest.mark.parametrize(("projection", "power"), [("q", 0.5), ("k", 1.0), ("k", -1.0)])
def test_queries_and_keys_are_named_before_the_scores_that_they_make_wrong(projection, power):
    class Multiplied(Heads):
        def __init__(self, width: int):
            super().__init__(width)
            factor = torch.tensor((width / WIDTHS[0]) ** power)

            def multiply(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                return output * factor

            self.get_submodule(projection).register_forward_hook(multiply)

    code = "growing-activations" if power > 0 else "shrinking-output"
    fails(check(adam(Multiplied)), code, f"the product with {projection}.weight")


def test_a_wrong_initial_size_is_named_before_its_symptoms():
    result = check(adam(Plain, starts={"hid.weight": 0.5}))
    fails(result, "wrong-initial-size", "hid.weight")

    def constant(width):
        model, groups = by_hand(Heads, width)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        return model, torch.optim.Adam(groups)

    fails(check(constant), "wrong-initial-size", "q.weight")


def test_time_scales_must_not_depend_on_the_width():
    def build(width):
        model, groups = by_hand(Plain, width)
        return model, torch.optim.Adam(groups, betas=(1 - 3.2 / width, 0.999))

    fails(check(build), "settings-depend-on-size", "betas[0]")


# --- steps ----------------------------------------------------------------------------------------


class Clipped(torch.optim.SGD):
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 1e-2)
        return super().step(closure)


def _clipped(width):
    model, groups = by_hand(Plain, width, "sgd")
    return model, Clipped(groups, lr=0.1)


def _clipped_by_a_hook(width):
    model, groups = by_hand(Plain, width, "sgd")
    optimizer = torch.optim.SGD(groups)

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(list(model.parameters()), 1e-2)

    optimizer.register_step_pre_hook(clip)
    return model, optimizer


@pytest.mark.parametrize("build", [_clipped, _clipped_by_a_hook])
def test_clipping_fails_with_sgd(build):
    fails(check(build), "small-gradients", "clipped")


def test_a_loss_that_is_divided_by_the_width_is_named_with_sgd():
    class Sized(Plain):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.hid.in_features

    def loss(output, target):
        return functional.cross_entropy(output[0], target) * WIDTHS[0] / output[1]

    fails(check(sgd(Sized), loss=loss), "loss-scale")


@pytest.mark.parametrize(("power", "verdict"), [(-1.0, "PASS"), (0.0, "FAIL")])
def test_each_tensor_is_judged_by_the_optimizer_that_has_it(power, verdict):
    """A plan would give both hidden matrices to Muon; here AdamW has one, with its own rate."""

    def build(width: int) -> Any:
        model = HealthyBranch(width)
        growth = width / WIDTHS[0]
        model.out.weight.data.mul_(growth**-0.5)
        rates = {"up.weight": growth**power, "out.weight": 1 / growth}
        groups = []
        for name, tensor in model.named_parameters():
            if name not in ("hid.weight", "down.weight"):
                groups.append({"params": [tensor], "lr": 1e-2 * rates.get(name, 1.0)})
        muon = torch.optim.Muon([model.hid.weight, model.down.weight], lr=LR["muon"])
        return model, CombinedOptimizer({"muon": muon, "adamw": torch.optim.AdamW(groups)})

    result = check(build, optimizer="muon", lr=LR["muon"])
    rates = [line for line in result.judgements if line.quantity == Quantity.RATE]
    assert {line.verdict for line in rates if line.module == "up.weight"} == {verdict}
    assert {line.verdict for line in rates if line.module != "up.weight"} == {"PASS"}


def test_muon_that_matches_adamw_is_blamed_on_its_rate():
    def build(width):
        plan = o1.plan(Plain(width), base=Plain(WIDTHS[0]), optimizer="muon", lr=LR["muon"])
        plan.apply()
        optimizer = plan.optimizer()
        for group in optimizer.param_groups:
            if "adjust_lr_fn" in group:
                group["adjust_lr_fn"] = "match_rms_adamw"
        return plan.bound(), optimizer

    fails(check(build, optimizer="muon", lr=LR["muon"]), "lr-not-scaled", "hid.weight")


# --- no false alarm -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Tied, TiedBefore])
def test_a_multiplier_of_a_tied_head_passes(kind):
    def build(width):
        model, groups = by_hand(kind, width)
        return model, torch.optim.Adam(groups)

    result = check(build, TOKENS)
    assert result.passed, str(result)
    assert check(kind, TOKENS).passed


def test_a_longer_warm_up_of_one_group_passes():
    def build(width):
        model, optimizer = adam(Plain)(width)
        lengths = [20 if number == 0 else 10 for number in range(len(optimizer.param_groups))]
        warm_ups = [lambda t, n=n: min(1.0, (t + 1) / n) for n in lengths]
        return model, optimizer, LambdaLR(optimizer, warm_ups)

    result = check(build)
    assert result.passed, str(result)


def test_a_warm_up_that_depends_on_the_width_fails():
    def build(width):
        model, optimizer = adam(Plain)(width)
        return model, optimizer, LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / width))

    fails(check(build), "broken-schedule")


# --- depth ----------------------------------------------------------------------------------------


def test_an_unscaled_stream_fails_in_depth():
    class Stack(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.inp = nn.Linear(FEATURES, 32)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
                for _ in range(depth)
            )
            self.last = nn.LayerNorm(32)
            self.out = nn.Linear(32, CLASSES)

        def forward(self, x):
            x = self.inp(x)
            for block in self.blocks:
                x = x + block(x)
            return self.out(self.last(x).mean(1))

    def build(depth):
        return Stack(depth)

    result = o1.coord_check(build, depths=[2, 4, 8], seeds=2, lr=LR["adam"], batches=SERIES)
    fails(result, "unscaled-branches")


class Unused(nn.Module):
    """A network with a matrix whose gradient is zero, and one without a gradient."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.hidden = nn.Linear(width, width)
        self.silent = nn.Linear(width, width)
        self.unused = nn.Linear(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = torch.relu(self.hidden(h)) + 0 * self.silent(h)
        return self.last(h)


@pytest.mark.parametrize(("power", "verdict"), [(0.0, "PASS"), (1.0, "FAIL"), (-1.0, "FAIL")])
def test_the_decay_of_a_tensor_without_gradient_is_judged(power, verdict):
    def build(width):
        plan = o1.plan(Unused(width), base=Unused(32), lr=1e-2, weight_decay=0.1)
        plan.apply()
        groups = []
        for name, tensor in plan.tensors().items():
            decay = plan[name].weight_decay
            if name == "silent.weight":
                decay *= (width / 32) ** power
            groups.append({"params": [tensor], "lr": plan[name].lr, "weight_decay": decay})
        return plan.bound(), torch.optim.AdamW(groups)

    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    result = o1.coord_check(build, (32, 64, 128, 256), lr=1e-2, batches=(x, x[:, :4].argmax(-1)))
    assert (result.verdict == "FAIL") == (verdict == "FAIL"), str(result)
    if verdict == "FAIL":
        assert "silent.weight" in result.causes[0]
