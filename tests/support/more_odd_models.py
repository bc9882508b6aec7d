"""Further models with uncommon state or code, as people write them.

Each is a function of the width. Training them in a stack equals training them alone, or a code says
why not; resuming equals the uninterrupted training, or a code says which state is missing.
"""

import collections
import functools
import itertools
import math
import random
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize

from support.odd_models import between, like

MORE: dict[str, Callable[[int], nn.Module]] = {}


def odd(name: str, prepare: Callable[[Any], None] | None = None) -> Callable[[Any], Any]:
    """Register a model whose middle is the decorated function of (model, h)."""

    def register(use: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        MORE[name] = between(prepare, use)
        return use

    return register


def number() -> float:
    """Return a random number that depends on the seed of the model."""
    return 1.0 + 0.5 * float(torch.rand(()))


def sets(**attributes: Callable[[], object]) -> Callable[[Any], None]:
    """Return a function that gives a model these attributes, made anew for each model."""

    def prepare(model: Any) -> None:
        for name, make in attributes.items():
            setattr(model, name, make())

    return prepare


# --- code that was replaced -----------------------------------------------------------------------


def patched_head(model: Any) -> None:
    scale, old = number(), model.head.forward
    model.head.forward = lambda x: scale * old(x)


def patched_same(model: Any) -> None:
    old = model.head.forward
    model.head.forward = lambda x: 0.5 * old(x)


def patched_method(model: Any) -> None:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.tanh(), self.bias)

    model.head.forward = types.MethodType(forward, model.head)


odd("forward replaced, number", patched_head)(lambda model, h: h)
odd("forward replaced, same", patched_same)(lambda model, h: h)
odd("forward replaced, bound", patched_method)(lambda model, h: h)


class Wrapper(nn.Module):
    """Model that passes unknown attributes on to the module that it wraps."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) * (1.0 + 0.01 * self.width)


MORE["wrapper with __getattr__"] = lambda width: Wrapper(between()(width))


# --- caches ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def causal(rows: int) -> Tensor:
    return torch.tril(torch.ones(rows, rows))


@odd("lru_cache of a function")
def _(model: Any, h: Tensor) -> Tensor:
    return h @ causal(h.shape[-1]).to(h.dtype)


class CachedMethod(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inner = between()(width)
        self.scale = number()

    @functools.cache  # noqa: B019
    def table(self, rows: int) -> float:
        return self.scale * rows

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.table(len(x))


MORE["lru_cache of a method"] = CachedMethod


class CachedProperty(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inner = between()(width)

    @functools.cached_property
    def table(self) -> Tensor:
        return torch.linspace(0.5, 1.5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.table.to(x.dtype)


MORE["cached property"] = CachedProperty

BY_ID: dict[int, float] = {}


@odd("cache by id")
def _(model: Any, h: Tensor) -> Tensor:
    if id(model) not in BY_ID:
        BY_ID[id(model)] = 1.0 + 0.1 * float(torch.rand(()))
        weakref.finalize(model, BY_ID.pop, id(model))  # Python uses the number again
    return h * BY_ID[id(model)]


@odd("position table made in the first pass", sets(table=lambda: None))
def _(model: Any, h: Tensor) -> Tensor:
    if model.table is None:
        model.table = torch.sin(torch.arange(h.shape[-1], dtype=h.dtype))
    return h + model.table


@odd("number of evaluations", sets(evaluations=lambda: 0))
def _(model: Any, h: Tensor) -> Tensor:
    if not model.training:
        model.evaluations += 1
    return h * (1 + 0.1 * model.evaluations)


# --- numbers that change --------------------------------------------------------------------------


@odd("temperature anneals", sets(temperature=lambda: 1.0))
def _(model: Any, h: Tensor) -> Tensor:
    if model.training:
        model.temperature *= 0.9
    return h / (0.1 + model.temperature)


@odd("curriculum from the third step", sets(calls=lambda: 0))
def _(model: Any, h: Tensor) -> Tensor:
    if model.training:
        model.calls += 1
    return h * (0.5 if model.calls >= 3 else 1.0)


HIDDEN: "weakref.WeakKeyDictionary[nn.Module, float]" = weakref.WeakKeyDictionary()


def private(model: Any) -> None:
    model.calls = 0
    HIDDEN[model] = number()


@odd("private number from the third step", private)
def _(model: Any, h: Tensor) -> Tensor:
    """Every model multiplies by a number of its own, which only a global table knows."""
    if model.training:
        model.calls += 1
    return h * (HIDDEN[model] if model.calls >= 3 else 1.0)


def keeps_history(model: Any, h: Tensor) -> Tensor:
    if model.training:
        model.history.append(len(h))
    return h * (1 + 0.01 * len(model.history))


odd("history in a list", sets(history=list))(keeps_history)
odd("history in a deque", sets(history=lambda: collections.deque(maxlen=3)))(keeps_history)


@odd("counter of the class")
def _(model: Any, h: Tensor) -> Tensor:
    kind: Any = type(model)
    kind.calls = getattr(kind, "calls", 0) + 1
    return h * (1 + 0.1 * (kind.calls % 5))


@odd("count of an iterator", sets(steps=itertools.count))
def _(model: Any, h: Tensor) -> Tensor:
    if not model.training:
        return h
    return h * (1 + 0.1 * (next(model.steps) % 4))


def with_closure(model: Any) -> None:
    calls = 0

    def f(h: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return h * (1 + 0.1 * (calls % 3))

    model.f = f


@odd("counter in a closure", with_closure)
def _(model: Any, h: Tensor) -> Tensor:
    return model.f(h)


@odd("time of day")
def _(model: Any, h: Tensor) -> Tensor:
    return h * (1 + 1e-3 * (time.perf_counter() % 1))


# --- random numbers -------------------------------------------------------------------------------


@odd("numpy generator of the model", sets(rng=lambda: np.random.default_rng(5)))
def _(model: Any, h: Tensor) -> Tensor:
    return h * (1 + 0.1 * model.rng.random())


@odd("Python generator of the model", sets(rng=lambda: random.Random(5)))
def _(model: Any, h: Tensor) -> Tensor:
    return h * (1 + 0.1 * model.rng.random())


def seeded_generator(model: Any) -> None:
    model.rng = torch.Generator().manual_seed(int(torch.randint(0, 1000, ())))


@odd("torch generator with a drawn seed", seeded_generator)
def _(model: Any, h: Tensor) -> Tensor:
    return h + 0.1 * torch.randn(h.shape, generator=model.rng).to(h.dtype)


class Dropped(nn.Module):
    """Stochastic depth: a branch is dropped for whole samples."""

    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return h + self.layer(h)
        keep = torch.bernoulli(torch.full((len(h), 1), 0.5, dtype=h.dtype))
        return h + self.layer(h) * keep / 0.5


def adds(make: Callable[[int], nn.Module]) -> Callable[[Any], None]:
    def prepare(model: Any) -> None:
        model.extra = make(model.width)

    return prepare


def by_extra(model: Any, h: Tensor) -> Tensor:
    return model.extra(h)


odd("stochastic depth", adds(Dropped))(by_extra)
odd("random ReLU", adds(lambda width: nn.RReLU()))(by_extra)


@odd("variational noise", adds(lambda width: nn.Linear(width, 2 * width)))
def _(model: Any, h: Tensor) -> Tensor:
    mean, log = model.extra(h).chunk(2, -1)
    return mean + torch.exp(0.5 * log) * torch.randn_like(mean)


@odd("Gumbel softmax")
def _(model: Any, h: Tensor) -> Tensor:
    return F.gumbel_softmax(h, tau=0.7, hard=True) + h


@odd("mixup inside")
def _(model: Any, h: Tensor) -> Tensor:
    if not model.training:
        return h
    order = torch.randperm(len(h))
    share = torch.distributions.Beta(1.0, 1.0).sample(())
    return h * share.to(h.dtype) + h[order] * (1 - share).to(h.dtype)


@odd("random choice of Python", adds(lambda width: nn.ModuleList([nn.ReLU(), nn.Tanh()])))
def _(model: Any, h: Tensor) -> Tensor:
    return random.choice(list(model.extra))(h)


@odd("dropout of weights", adds(lambda width: nn.Linear(width, width)))
def _(model: Any, h: Tensor) -> Tensor:
    weight = F.dropout(model.extra.weight, 0.3, model.training)
    return F.linear(h, weight, model.extra.bias)


# --- parameters -----------------------------------------------------------------------------------


class TiedByProperty(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(6, width, bias=False)
        self.head = nn.Linear(6, 3)

    @property
    def down(self) -> Tensor:
        return self.up.weight.T

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(x)) @ self.down.T)


MORE["tied by a property"] = TiedByProperty

SHARED: dict[int, nn.Linear] = {}


def shares_globally(model: Any) -> None:
    model.extra = SHARED.setdefault(model.width, nn.Linear(model.width, model.width))


odd("layer shared between models", shares_globally)(by_extra)


def shares_frozen(model: Any) -> None:
    if "frozen" not in FROZEN:
        FROZEN["frozen"] = torch.eye(64)
    model.frozen = FROZEN["frozen"]


FROZEN: dict[str, Tensor] = {}


@odd("frozen table shared between models", shares_frozen)
def _(model: Any, h: Tensor) -> Tensor:
    width = h.shape[-1]
    return h @ like(model.frozen[:width, :width], h)


class LazyHead(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.head: nn.Linear | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if self.head is None:
            self.head = nn.Linear(h.shape[-1], 3).to(h.dtype)
        return self.head(h)


MORE["layer made in the first pass"] = LazyHead


class Weights(nn.Module):
    """Parametrization with a random mask of its own."""

    mask: Tensor

    def __init__(self, shape: torch.Size):
        super().__init__()
        self.register_buffer("mask", (torch.rand(shape) > 0.3).float(), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask.to(weight.dtype)


def masked(width: int) -> nn.Module:
    layer = nn.Linear(width, width)
    parametrize.register_parametrization(layer, "weight", Weights(layer.weight.shape))
    return layer


odd("sparse weights", adds(masked))(by_extra)
odd("two parametrizations", adds(lambda w: parametrizations.weight_norm(masked(w))))(by_extra)


@odd("scale in ParameterDict", adds(lambda width: nn.ParameterDict({"a": torch.ones(width)})))
def _(model: Any, h: Tensor) -> Tensor:
    return h * model.extra["a"]


@odd("weights changed by the pass")
def _(model: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        model.first.weight.mul_(0.999)
    return h


@odd("data-dependent start", adds(lambda width: nn.BatchNorm1d(width, affine=False)))
def _(model: Any, h: Tensor) -> Tensor:
    if not hasattr(model, "started"):
        model.started = True
        with torch.no_grad():
            model.head.bias.fill_(0.25)
    return model.extra(h)


# --- teachers and averages ------------------------------------------------------------------------


def with_average(model: Any) -> None:
    model.register_buffer("average", torch.zeros(model.width))
    model.register_buffer("seen", torch.zeros((), dtype=torch.long))


@odd("average in place", with_average)
def _(model: Any, h: Tensor) -> Tensor:
    if model.training:
        with torch.no_grad():
            model.average.lerp_(h.mean(0), 0.1)
            model.seen.add_(1)
    return h - model.average


def with_queue(model: Any) -> None:
    model.register_buffer("queue", torch.zeros(4, model.width))
    model.place = 0


@odd("queue of keys", with_queue)
def _(model: Any, h: Tensor) -> Tensor:
    if model.training:
        model.queue[model.place] = h.mean(0).detach()
        model.place = (model.place + 1) % len(model.queue)
    return h + model.queue.mean(0)


def with_teacher(model: Any) -> None:
    model.teacher = nn.Linear(model.width, model.width)
    model.student = nn.Linear(model.width, model.width)
    model.teacher.load_state_dict(model.student.state_dict())
    model.teacher.requires_grad_(False)


@odd("EMA teacher, submodule", with_teacher)
def _(model: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            slow.mul_(0.9).add_(fast, alpha=0.1)
        target = model.teacher(h)
    return model.student(h) + target


@odd("codebook replaced", adds(lambda width: nn.Embedding(4, width)))
def _(model: Any, h: Tensor) -> Tensor:
    codes = model.extra.weight
    nearest = torch.cdist(h, codes).argmin(-1)
    quantized = codes[nearest]
    return h + (quantized - h).detach() + 0.1 * (quantized - h.detach())


# --- gradients ------------------------------------------------------------------------------------


class Remembering(torch.autograd.Function):
    """Function that keeps plain numbers and flags on its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: int) -> Tensor:
        ctx.power = power
        ctx.save_for_backward(x)
        return x**power

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.power * x ** (ctx.power - 1), None


@odd("function with a context")
def _(model: Any, h: Tensor) -> Tensor:
    result: Any = Remembering.apply(h, 3)
    return h + 0.1 * result


class Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        Counting.calls += 1
        return gradients[0] * (1 + 0.1 * (Counting.calls % 3))


@odd("function that counts")
def _(model: Any, h: Tensor) -> Tensor:
    result: Any = Counting.apply(h)
    return result


@odd("hook in the pass")
def _(model: Any, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda g: 0.5 * g)
    return h


@odd("gradient inside the pass")
def _(model: Any, h: Tensor) -> Tensor:
    with torch.enable_grad():
        point = h.detach().requires_grad_()
        (slope,) = torch.autograd.grad((point**3).sum(), point)
    return h + 0.01 * slope


def with_reversal(model: Any) -> None:
    model.first.weight.register_hook(lambda g: -g)


odd("reversed gradient of a weight", with_reversal)(lambda model, h: h)


@odd("detached half")
def _(model: Any, h: Tensor) -> Tensor:
    a, b = h.chunk(2, -1)
    return torch.cat([a.detach(), b], -1)


# --- types and modes ------------------------------------------------------------------------------


@odd("single precision inside", adds(lambda width: nn.LayerNorm(width)))
def _(model: Any, h: Tensor) -> Tensor:
    return F.layer_norm(h.float(), h.shape[-1:]).to(h.dtype)


@odd("number from numpy", sets(scale=lambda: np.float64(0.7)))
def _(model: Any, h: Tensor) -> Tensor:
    return h * model.scale


@odd("frozen dropout", adds(lambda width: nn.Dropout(0.5).eval()))
def _(model: Any, h: Tensor) -> Tensor:
    return model.extra(h)


@odd("always in training mode", adds(lambda width: nn.Dropout(0.5)))
def _(model: Any, h: Tensor) -> Tensor:
    return F.dropout(h, 0.2, training=True)


@odd("adaptive number of layers", adds(lambda width: nn.Linear(width, width)))
def _(model: Any, h: Tensor) -> Tensor:
    for _ in range(3):
        h = torch.tanh(model.extra(h))
        if bool(h.abs().mean() < 0.3):
            break
    return h


@odd("deterministic shuffle", sets(order=lambda: torch.randperm(8)))
def _(model: Any, h: Tensor) -> Tensor:
    return h.roll(int(model.order[0]), -1)


@odd("complex middle")
def _(model: Any, h: Tensor) -> Tensor:
    z = torch.view_as_complex(h.reshape(len(h), -1, 2).contiguous())
    return torch.view_as_real(z * complex(math.cos(0.3), math.sin(0.3))).flatten(1)
