"""Models for coordinate checks, healthy ones and ones with a fault in them, each with the words its
check must say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.lr_scheduler import CosineAnnealingLR

import orderone as o1
from orderone import rules
from support.zoo import ZOO

WIDTHS = (64, 128, 256, 512)
LR = 1e-2


class Net(nn.Module):
    """Three layers; the readout is `out`."""

    def __init__(self, width: int):
        super().__init__()
        self.inp, self.hid, self.out = (
            nn.Linear(32, width),
            nn.Linear(width, width),
            nn.Linear(width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.hid(torch.relu(self.inp(x)))))


class Heads(nn.Module):
    """Four heads whose size grows; queries have a matrix of their own, and scores are divided by
    the root of the size."""

    def __init__(self, width: int, power: float = 0.5):
        super().__init__()
        self.emb, self.pos, self.norm = (
            nn.Embedding(80, width),
            nn.Embedding(16, width),
            nn.LayerNorm(width),
        )
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.last, self.head, self.power = nn.LayerNorm(width), nn.Linear(width, 80), power

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos.weight[: ids.shape[1]]
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=q.shape[-1] ** -self.power
        )
        return self.head(self.last(x + self.o(mixed.transpose(1, 2).flatten(-2))))


def _with_weight_norm(width: int) -> Net:
    net = Net(width)
    for layer in (net.hid, net.out):
        weight_norm(layer)
    return net


def _numbers() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    return x, x[:, :10].argmax(-1)


def _tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 80, (8, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def _images() -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(16) % 10


NUMBERS, TOKENS, IMAGES = _numbers(), _tokens(), _images()


def planned(width: int, **options: Any) -> o1.Plan:
    plan = o1.plan(Net(width), base=Net(WIDTHS[0]), lr=LR, **options)
    plan.apply()
    return plan


def changed(change: Callable[[str, dict[str, Any], int], dict[str, Any]]) -> Callable[[int], tuple]:
    """A planned net whose groups, one for each tensor, are not quite those of the plan."""

    def build(width: int) -> tuple:
        plan = planned(width)
        tensors = plan.tensors()
        groups = [
            {"params": [tensors[r.name]], "lr": r.lr, "weight_decay": r.weight_decay}
            for r in plan.rows
        ]
        named = [
            change(row.name, group, width) for row, group in zip(plan.rows, groups, strict=True)
        ]
        return plan.bound(), torch.optim.AdamW([group for group in named if group])

    return build


def _without_rule(width: int) -> tuple:
    model = Net(width)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


def _unscaled(name: str) -> Callable[[str, dict[str, Any], int], dict[str, Any]]:
    return lambda tensor, group, width: group | ({"lr": LR} if tensor == name else {})


def _slow_embedding(tensor: str, group: dict[str, Any], width: int) -> dict[str, Any]:
    if tensor != "inp.weight":
        return group
    factor = WIDTHS[0] / width
    return group | {"lr": LR * factor, "weight_decay": group["weight_decay"] / factor}


def _fading_decay(tensor: str, group: dict[str, Any], width: int) -> dict[str, Any]:
    return group | {"weight_decay": 0.01}


def _left_out(tensor: str, group: dict[str, Any], width: int) -> dict[str, Any]:
    return {} if tensor == "hid.weight" else group


def _large_start(width: int) -> tuple:
    plan = planned(width)
    with torch.no_grad():
        plan.tensors()["hid.weight"].mul_((width / WIDTHS[0]) ** 0.5)
    return plan.bound(), plan.optimizer()


def _with_floor(width: int) -> tuple:
    optimizer = (plan := planned(width)).optimizer()
    return plan.bound(), optimizer, CosineAnnealingLR(optimizer, 4, eta_min=LR / 2)


def _frozen(width: int) -> nn.Module:
    model = Net(width)
    model.hid.requires_grad_(False)
    return model


def _detached(width: int) -> nn.Module:
    class Cut(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.hid(torch.relu(self.inp(x)))).detach())

    return Cut(width)


def _grown_output(width: int) -> nn.Module:
    """A factor that no constant in the forward code shows: a buffer."""

    class Scaled(Net):
        gain: Tensor

        def __init__(self, width: int):
            super().__init__(width)
            self.register_buffer("gain", torch.full((10,), (width / WIDTHS[0]) ** 0.5))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.gain

    return Scaled(width)


def _divided(width: int) -> tuple:
    """Scaled as it should be, and then the logits are divided by the width once more."""

    class Divided(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (WIDTHS[0] / self.inp.out_features)

    plan = planned(width)
    model = plan.bound()
    model.__class__ = Divided
    return model, plan.optimizer()


def _with_late_floor(width: int) -> tuple:
    optimizer = (plan := planned(width)).optimizer()
    return plan.bound(), optimizer, CosineAnnealingLR(optimizer, 1000, eta_min=LR / 10)


def _fast_bias(tensor: str, group: dict[str, Any], width: int) -> dict[str, Any]:
    return group | (
        {"lr": LR * (width / WIDTHS[0]) ** 0.5, "weight_decay": 0.0} if tensor == "hid.bias" else {}
    )


def _plain_sgd(width: int) -> tuple:
    model = Net(width)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _zero_readout(width: int) -> nn.Module:
    """As muP's authors advise. What comes before it gets its first gradient in the second step."""
    model = Net(width)
    nn.init.zeros_(model.out.weight)
    nn.init.zeros_(model.out.bias)
    return model


class ByHand(nn.Module):
    """muP as people write it: the logits are multiplied behind a readout that learns at the full
    rate."""

    def __init__(self, width: int):
        super().__init__()
        self.inp, self.hid, self.out = (
            nn.Linear(*fans, bias=False) for fans in ((32, width), (width, width), (width, 10))
        )
        self.multiplier = WIDTHS[0] / width
        for layer, std in (
            (self.inp, 32**-0.5),
            (self.hid, width**-0.5),
            (self.out, WIDTHS[0] ** -0.5),
        ):
            nn.init.normal_(layer.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return self.multiplier * self.out(torch.relu(self.hid(torch.relu(self.inp(x)))))


def _by_hand(width: int) -> tuple:
    model = ByHand(width)
    groups = [
        {"params": [model.inp.weight, model.out.weight], "lr": LR},
        {"params": [model.hid.weight], "lr": LR * WIDTHS[0] / width},
    ]
    return model, torch.optim.Adam(groups)


class WithMup(Net):
    def __init__(self, width: int):
        super().__init__(width)
        import mup

        self.out = mup.MuReadout(width, 10)


def _with_mup(width: int) -> tuple:
    import mup

    model = WithMup(width)
    mup.set_base_shapes(model, WithMup(32), delta=WithMup(64))
    return model, mup.MuAdamW(model.parameters(), lr=LR)


def _without_base_shapes(width: int) -> tuple:
    import mup

    model = WithMup(width)
    mup.set_base_shapes(model, None)
    return model, torch.optim.AdamW(model.parameters(), lr=LR)


class Adapter(nn.Module):
    """A hidden layer with a path of rank 4 beside it, in which a fading number of order 1/sqrt(n)
    becomes wide again."""

    def __init__(self, width: int):
        super().__init__()
        self.inp, self.hid, self.out = (
            nn.Linear(32, width),
            nn.Linear(width, width),
            nn.Linear(width, 10),
        )
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inp(x))
        return self.out(torch.tanh(self.hid(x) + self.up(self.down(x))))


class Bottleneck(nn.Module):
    """All goes through 4 numbers, which let little of the gradient back in the first step."""

    def __init__(self, width: int):
        super().__init__()
        self.inp, self.down, self.up = (
            nn.Linear(32, width),
            nn.Linear(width, 4),
            nn.Linear(4, width),
        )
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.up(self.down(torch.tanh(self.inp(x))))))


def scaled_by_hand(model: nn.Module, width: int, rates: Any = None, **options: Any) -> tuple:
    """muP of a model with readouts `out` and `down` and a wide matrix `hid`; `rates` multiplies
    those of tensors."""
    groups = []
    for name, p in model.named_parameters():
        narrow = name not in ("hid.weight", "out.weight", "down.weight")
        factor = (rates or {}).get(name, 1.0) * (1.0 if narrow else WIDTHS[0] / width)
        groups.append({"params": [p], "lr": LR * factor, "weight_decay": 0.0})
        if not narrow and name != "hid.weight":
            p.data *= (WIDTHS[0] / width) ** 0.5
    return model, torch.optim.AdamW(groups, **options)


def _narrow_sgd(width: int) -> tuple:
    factor, model = width / WIDTHS[0], Bottleneck(width)
    model.out.weight.data *= factor**-0.5
    model.down.weight.data *= factor**-0.5
    rates = {"out.weight": 1 / factor, "down.weight": 1 / factor, "out.bias": 1.0, "down.bias": 1.0}
    groups = [
        {"params": [p], "lr": 0.1 * rates.get(name, factor)} for name, p in model.named_parameters()
    ]
    return model, torch.optim.SGD(groups)


class Normed(nn.Module):
    """The bias of `inp` and `hid` is taken away again by batch norm: its gradient is rounding."""

    def __init__(self, width: int):
        super().__init__()
        self.inp, self.one, self.out = (
            nn.Conv2d(3, width, 3),
            nn.BatchNorm2d(width),
            nn.Linear(width, 10),
        )
        self.hid, self.two = nn.Conv2d(width, width, 3, stride=2), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(
            torch.relu(self.two(self.hid(torch.relu(self.one(self.inp(x)))))).mean((-1, -2))
        )


class Places(nn.Module):
    """A table of positions that is a parameter of its own."""

    def __init__(self, width: int):
        super().__init__()
        self.emb, self.pos = nn.Embedding(80, width), nn.Parameter(0.3 * torch.randn(16, width))
        self.norm, self.hid, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Linear(width, 80),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos
        return self.out(x + torch.relu(self.hid(self.norm(x))))


def _lost_places(width: int) -> tuple:
    return scaled_by_hand(Places(width), width, rates={"pos": WIDTHS[0] / width})


def _divided_places(width: int) -> tuple:
    model, optimizer = scaled_by_hand(Places(width), width)
    model.register_forward_hook(lambda module, inputs, output: output * (WIDTHS[0] / width))
    return model, optimizer


def _large_eps(width: int) -> tuple:
    return scaled_by_hand(Net(width), width, eps=1e-3)


def _radam(width: int, rates: Any = None) -> tuple:
    """Its first five steps are those of SGD with momentum, whatever they are scaled like."""
    model, optimizer = scaled_by_hand(Net(width), width, rates)
    return model, torch.optim.RAdam(
        [{"params": g["params"], "lr": g["lr"]} for g in optimizer.param_groups]
    )


def _averaged_sgd(width: int) -> tuple:
    """A class that is not known, whose steps are proportional to the gradient."""
    model, optimizer = _own(optimizer="sgd")(width)
    return model, torch.optim.ASGD(
        [{"params": g["params"], "lr": 10 * g["lr"]} for g in optimizer.param_groups]
    )


class TiedByHand(nn.Module):
    """The table is the readout too, in code that is no module; `corrected` multiplies the
    logits."""

    def __init__(self, width: int, corrected: bool):
        super().__init__()
        self.emb, self.norm = nn.Embedding(80, width), nn.LayerNorm(width, elementwise_affine=False)
        self.hid, self.multiplier = (
            nn.Linear(width, width),
            1 / width if corrected else 1 / WIDTHS[0],
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.emb(ids))
        return self.multiplier * functional.linear(x + torch.relu(self.hid(x)), self.emb.weight)


def _small_biases(width: int) -> tuple:
    """Biases of torch start like 1/sqrt(n), and Adafactor's steps are as large as the tensor is."""
    plan = planned(width, optimizer="adafactor")
    with torch.no_grad():
        plan.tensors()["hid.bias"].mul_((WIDTHS[0] / width) ** 0.5)
    return plan.bound(), plan.optimizer()


def _penalty(width: int) -> tuple:
    """Weight decay as Adam has it, of the same strength at every width, where gradients shrink
    faster than weights."""
    model, optimizer = scaled_by_hand(Net(width), width)
    groups = [{"params": g["params"], "lr": g["lr"]} for g in optimizer.param_groups]
    return model, torch.optim.Adam(groups, weight_decay=0.1)


def _sp_under_another_name() -> Any:
    sp = rules.get("sp")
    return rules.custom("mup", a=sp.a, b=sp.b, c=sp.c)


@dataclass(frozen=True)
class Subject:
    """A model to check; `code` and `words` must be in one of the causes, if it is faulty."""

    build: Callable[..., Any]
    code: str = ""
    words: str = ""
    batch: Any = NUMBERS
    options: Any = None

    def check(self, **options: Any) -> o1.measure.Check:
        defaults = {"widths": WIDTHS, "lr": LR, "batches": self.batch}
        return o1.coord_check(self.build, **{**defaults, **(self.options or {}), **options})


def floor(optimizer: torch.optim.Optimizer) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, 4, eta_min=LR / 2)


FAULTY = {
    "sp called mup": Subject(_without_rule, "standard-parameterization"),
    "sp under the name of mup": Subject(
        Net, "rule-predicts-growth", options={"rule": _sp_under_another_name()}
    ),
    "standard": Subject(Net, "rule-predicts-growth", options={"rule": "standard"}),
    "forgotten readout": Subject(changed(_unscaled("out.weight")), "readout-not-scaled"),
    "readout said to be fixed": Subject(
        Net, "readout-not-scaled", options={"overrides": {"out.weight": "fixed"}}
    ),
    "forgotten hidden rate": Subject(changed(_unscaled("hid.weight")), "lr-not-scaled", "hidden"),
    "embedding rate": Subject(changed(_slow_embedding), "lr-not-scaled", "embedding"),
    "attention scale": Subject(
        Heads, "attention-not-scaled", batch=TOKENS, options={"score_power": "1/2"}
    ),
    "weight decay, proportional": Subject(
        Net,
        "decay-not-scaled",
        "a step shrinks",
        options={"weight_decay": 0.1, "decay": "proportional"},
    ),
    "weight decay, own groups": Subject(
        changed(_fading_decay), "decay-not-scaled", "a step shrinks"
    ),
    "weight decay behind a warm-up": Subject(
        Net,
        "decay-not-scaled",
        "a step shrinks",
        options={
            "weight_decay": 0.1,
            "decay": "proportional",
            "steps": 5,
            "scheduler": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: t / 4),
        },
    ),
    "weight decay, in the gradient": Subject(
        _penalty, "decay-not-scaled", "the penalty of inp.weight"
    ),
    "schedule with a floor": Subject(Net, "broken-schedule", options={"scheduler": floor}),
    "own schedule with a floor": Subject(_with_floor, "broken-schedule"),
    "base equals target": Subject(
        lambda width: o1.plan(Net(width), base=Net(width), lr=LR), "base-equals-target"
    ),
    "build ignores the width": Subject(lambda width: Net(64), "same-shapes"),
    "left out of the optimizer": Subject(changed(_left_out), "frozen-tensor", "optimizer"),
    "detached": Subject(_detached, "frozen-tensor", "no gradient"),
    "initial size": Subject(_large_start, "wrong-initial-size", "hid"),
    "grown output": Subject(_grown_output, "readout-not-scaled", "the model"),
    "vanishing output": Subject(_divided, "shrinking-output"),
    "a floor long after the check": Subject(_with_late_floor, "broken-schedule"),
    "bias rate": Subject(changed(_fast_bias), "lr-not-scaled", "biases"),
    "sp called mup, with sgd": Subject(_plain_sgd, "standard-parameterization"),
    "eps": Subject(_large_eps, "eps-not-scaled", "eps"),
    "rate of positions": Subject(
        _lost_places, "lr-not-scaled", "learning rates of pos scale like n^-1", TOKENS
    ),
    "vanishing output of tokens": Subject(_divided_places, "shrinking-output", batch=TOKENS),
    "tied in code that is no module": Subject(
        lambda width: TiedByHand(width, False), "unfinished-plan", batch=TOKENS
    ),
    "radam, hidden rate": Subject(
        lambda width: _radam(width, {"hid.weight": width / WIDTHS[0]}),
        "lr-not-scaled",
        "hidden",
        options={"steps": 9},
    ),
    "small biases, with adafactor": Subject(_small_biases, "wrong-initial-size", "hid.bias"),
    "mup's own, without base shapes": Subject(_without_base_shapes, "standard-parameterization"),
}


def of_zoo(name: str) -> Subject:
    entry = ZOO[name]
    return Subject(entry.build, batch=entry.batch(0), options={"loss": entry.loss})


def _own(**options: Any) -> Callable[[int], tuple]:
    def build(width: int) -> tuple:
        plan = planned(width, **options)
        return plan.bound(), plan.optimizer()

    return build


def _dropping(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


HEALTHY = {
    "mlp": Subject(Net),
    "gpt2 (tied)": of_zoo("gpt2"),
    "llama": of_zoo("llama"),
    "vit": of_zoo("vit"),
    "larger heads": Subject(Heads, batch=TOKENS),
    "larger heads, divided by their size": Subject(
        lambda width: Heads(width, power=1.0), batch=TOKENS
    ),
    "scaled already": Subject(_own()),
    "scaled by hand": Subject(_by_hand),
    "a multiplier behind the readout": Subject(ByHand),
    "scaled by mup": Subject(_with_mup),
    "weight norm": Subject(_with_weight_norm),
    "an adapter": Subject(Adapter),
    "an adapter, scaled by hand": Subject(lambda width: scaled_by_hand(Adapter(width), width)),
    "a bottleneck, with sgd": Subject(Bottleneck, options={"optimizer": "sgd", "lr": 0.1}),
    "a bottleneck, with sgd by hand": Subject(_narrow_sgd),
    "biases before batch norm": Subject(
        lambda width: scaled_by_hand(Normed(width), width),
        batch=IMAGES,
        options={"widths": (16, 32, 64, 128)},
    ),
    "positions, scaled by hand": Subject(
        lambda width: scaled_by_hand(Places(width), width), batch=TOKENS
    ),
    "radam": Subject(_radam, options={"steps": 9}),
    "averaged sgd": Subject(_averaged_sgd),
    "tied in code that is no module, multiplied": Subject(
        lambda width: TiedByHand(width, True), batch=TOKENS
    ),
    "weight decay, in the gradient": Subject(
        Net, options={"optimizer": "adam", "weight_decay": 0.1}
    ),
    "zero readout": Subject(_zero_readout),
    "frozen layer": Subject(_frozen),
    "scaled already, in another gauge": Subject(_own(gauge="unit")),
    "a plan": Subject(lambda width: o1.plan(Net(width), base=Net(64), lr=LR, gauge="paper")),
    "sgd": Subject(Net, options={"optimizer": "sgd", "lr": 0.5}),
    "adafactor": Subject(Net, options={"optimizer": "adafactor"}),
    "muon": Subject(Net, options={"optimizer": "muon", "lr": 0.02}),
    "dropout": Subject(_dropping),
    "other batches at every step": Subject(
        Net, batch=[(NUMBERS[0].roll(i, 0), NUMBERS[1].roll(i)) for i in range(4)]
    ),
    "warm-up": Subject(
        Net,
        options={
            "scheduler": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: t / 4),
            "steps": 5,
        },
    ),
}
