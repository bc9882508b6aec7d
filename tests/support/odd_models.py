"""Models that hold or use something in an uncommon way: their stacked training equals their
stand-alone training, or a reason says why they are trained one after another."""

import functools
import random
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm
from torch.utils.checkpoint import checkpoint

INPUTS, CLASSES = 6, 3


class Between(nn.Module):
    """Two linear layers with `use(model, h)` between them; `prepare(model)` sets it up."""

    use: Callable[[Tensor], Tensor]

    def __init__(self, width, prepare, use):
        super().__init__()
        self.first, self.head = nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)
        self.width = width
        vars(self)["use"] = types.MethodType(use, self)
        if prepare is not None:
            prepare(self)

    def forward(self, x):
        return self.head(torch.tanh(self.use(self.first(x))))


def between(prepare=None, use=lambda model, h: h):
    return functools.partial(Between, prepare=prepare, use=use)


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, h):
        return h * self.scale


class Plain:
    def __init__(self, value):
        self.value = value


def _drawn(model) -> Tensor:
    return torch.randn(model.width).to(model.first.weight)


def like(tensor: Tensor, h: Tensor) -> Tensor:
    return tensor.to(h.dtype)


# --- things that differ between members and are no parameters or buffers --------------------------


def captured_by_lambda(model):
    t = _drawn(model)
    model.f = lambda h: h * like(t, h)


def captured_parameter(model):
    w = nn.Parameter(torch.ones(model.width))
    model.w = w
    model.f = lambda h: h * like(w, h)


def captured_deeply(model):
    t = _drawn(model)

    def outer():
        def inner():
            def deepest():
                return t

            return deepest()

        return inner()

    def again(function=outer):
        return function()

    model.f = lambda h: h * like((lambda: (lambda: again())())(), h)


def by_partial(model):
    model.f = functools.partial(lambda t, h: h * like(t, h), _drawn(model))


def by_partial_keyword(model):
    model.f = functools.partial(lambda h, t: h * like(t, h), t=_drawn(model))


def in_default(model):
    model.f = lambda h, t=_drawn(model): h * like(t, h)  # noqa: B008


def in_slots(model):
    model.f = Slots(float(_drawn(model)[0]))


def in_slots_tensor(model):
    t = _drawn(model)
    model.f = lambda h, s=Slots(t): h * like(s.scale, h)  # noqa: B008


def teacher_in_list(model):
    model.teacher = [nn.Linear(model.width, model.width).requires_grad_(False)]
    model.f = lambda h: h + model.teacher[0].to(h.dtype)(h)


def trained_in_object(model):
    held = Plain(nn.Linear(model.width, model.width))
    model.held = held
    model.f = lambda h: h + held.value.to(h.dtype)(h)


def parameter_in_dict(model):
    model.table = {"w": model.head.bias}
    model.f = lambda h: h + model.table["w"].sum()


def hook_with_number(model):
    c = float(_drawn(model)[0])
    model.first.register_forward_hook(lambda module, args, output: output * c)


def pre_hook_with_tensor(model):
    t = _drawn(model)
    model.head.register_forward_pre_hook(lambda module, args: (args[0] * like(t, args[0]),))


def hook_on_the_model(model):
    c = float(_drawn(model)[0])
    model.register_forward_hook(lambda module, args, output: output + c)


def attribute_number(model):
    model.scale = float(_drawn(model)[0])


def attribute_numpy(model):
    model.scale = np.asarray(_drawn(model).numpy())


def attribute_list(model):
    model.scale = _drawn(model).tolist()


def own_forward(model):
    t = _drawn(model)
    original = model.first.forward
    model.first.forward = lambda x: original(x) * like(t, x)


def global_table(model):
    GLOBALS[id(model)] = _drawn(model)
    model.f = lambda h: h * like(GLOBALS[id(model)], h)


GLOBALS: dict[int, Tensor] = {}


def generator_of_numbers(model):
    numbers = iter(_drawn(model).tolist() * 1000)
    model.f = lambda h: h * next(numbers)


def closure_over_class(model):
    t = _drawn(model)

    class Scale:
        def __call__(self, h):
            return h * like(t, h)

    model.f = Scale()


def class_attribute(model):
    kind = type(
        "Scale", (), {"scale": _drawn(model), "__call__": lambda s, h: h * like(s.scale, h)}
    )
    model.f = kind()


def property_of_class(model):
    t = _drawn(model)
    kind = cast(Any, type("Scale", (), {"scale": property(lambda s: t)}))
    model.f = lambda h, holder=kind(): h * like(holder.scale, h)  # noqa: B008


# --- gradients ------------------------------------------------------------------------------------


def hook_on_parameter(model):
    c = abs(float(_drawn(model)[0]))
    model.first.weight.register_hook(lambda g: g * c)


def post_accumulate_hook(model):
    def halve(p):
        p.grad.mul_(0.5)

    model.first.weight.register_post_accumulate_grad_hook(halve)


def full_backward_hook(model):
    model.head.register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 0.5,))


def backward_pre_hook(model):
    model.head.register_full_backward_pre_hook(lambda module, grad: (grad[0] * 0.5,))


def hook_on_activation(model):
    c = float(_drawn(model)[0])

    def f(h):
        h = h * 1.0
        if h.requires_grad:
            h.register_hook(lambda g: g * c)
        return h

    model.f = f


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, *g):
        return g[0]


def reversed_gradient(model):
    class Scaled(torch.autograd.Function):
        scale = float(_drawn(model)[0])

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, *g):
            return g[0] * Scaled.scale

    model.f = Scaled.apply


# --- modes and buffers ----------------------------------------------------------------------------


def frozen_batch_norm(model):
    model.norm = nn.BatchNorm1d(model.width).eval()


def in_evaluation_mode(model):
    model.norm = nn.BatchNorm1d(model.width)
    model.drop = nn.Dropout(0.5)
    model.eval()


def random_frozen_norm(model):
    model.norm = nn.BatchNorm1d(model.width)
    assert model.norm.running_mean is not None
    model.norm.running_mean.normal_()
    model.norm.eval()


def train_keeps_norm_frozen(model):
    model.norm = nn.BatchNorm1d(model.width)
    original = model.train

    def train(mode=True):
        original(mode)
        model.norm.eval()
        return model

    vars(model)["train"] = train
    model.train()


def by_norm(model, h):
    return model.norm(h)


def by_norm_and_dropout(model, h):
    return model.drop(model.norm(h))


def by_f(model, h):
    return model.f(h)


def by_scale(model, h):
    scale = model.scale
    if not isinstance(scale, float):
        scale = torch.as_tensor(np.asarray(scale), dtype=h.dtype)
    return h * scale


def adding(**buffers: Callable[[int], Tensor]):
    def prepare(model):
        for name, make in buffers.items():
            model.register_buffer(name, make(model.width))

    return prepare


def running_mean(model, h):
    if model.training:
        model.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - model.mean


def counting(model, h):
    model.count += 1
    return h * (1 + 0.1 * model.count)


def with_attribute(**values):
    def prepare(model):
        for name, value in values.items():
            setattr(model, name, value)

    return prepare


def counted(model, h):
    model.turn += 1
    return h * (1.0 + model.turn % 2)


def changes_in_evaluation(model, h):
    model.mean = model.mean + 0.1 * h.detach().mean(0)
    return h - model.mean


# --- modules and operations -----------------------------------------------------------------------


def with_module(make):
    def prepare(model):
        model.extra = make(model.width)

    return prepare


def by_module(model, h):
    return model.extra(h)


def shared_twice(model, h):
    return model.extra(torch.tanh(model.extra(h)))


def recurrent(model, h):
    return model.extra(h.unsqueeze(0))[0].squeeze(0)


def attending(model, h):
    return model.extra(h.unsqueeze(0), h.unsqueeze(0), h.unsqueeze(0))[0].squeeze(0)


def routed(model, h):
    best = h[:, :2].argmax(1)
    out = torch.zeros_like(h)
    for k, expert in enumerate(model.extra):
        rows = best == k
        out[rows] = expert(h[rows])
    return out


def recomputed(model, h):
    return checkpoint(model.extra, h, use_reentrant=False)


def spectral(model, h):
    return torch.fft.irfft(torch.fft.rfft(h) * 0.5, n=h.shape[-1])


def read_number(model, h):
    return h / float(h.detach().abs().max())


def noise(model, h):
    return h + 0.1 * torch.randn_like(h) if model.training else h


def layer_drop(model, h):
    return h if model.training and torch.rand(()) < 0.5 else model.extra(h)


def sorted_rows(model, h):
    return h.sort(-1).values


def top(model, h):
    return h * (h >= h.topk(2, 1).values[:, -1:])


def cumulative(model, h):
    return h.cumsum(-1) / h.shape[-1]


def decided(model, h):
    return h if h.sum() > 0 else -h


def written(model, h):
    out = torch.zeros_like(h)
    out[:, ::2] = h[:, ::2]
    return out


def tied(model):
    model.extra = nn.Linear(model.width, model.width)
    model.second = model.extra


def tied_use(model, h):
    return model.second(torch.tanh(model.extra(h)))


def weight_tied(model):
    model.extra = nn.Linear(INPUTS, model.width, bias=False)
    model.extra.weight = model.first.weight


def weight_tied_use(model, h):
    return h + h @ model.extra.weight @ model.extra.weight.T


def partly_frozen(model):
    model.first.weight.requires_grad_(False)


def unused(model):
    model.unused = nn.Linear(model.width, 3)


SEQUENTIAL = lambda width: nn.Sequential(nn.Linear(width, width), nn.GELU())  # noqa: E731
SQUARE = lambda width: nn.Linear(width, width)  # noqa: E731
WEIGHT_NORM = lambda width: parametrizations.weight_norm(nn.Linear(width, width))  # noqa: E731
SPECTRAL = lambda width: parametrizations.spectral_norm(nn.Linear(width, width))  # noqa: E731
ORTHOGONAL = lambda width: parametrizations.orthogonal(nn.Linear(width, width))  # noqa: E731

ODD_MODELS: dict[str, Callable[[int], nn.Module]] = {
    "tensor captured by a lambda": between(captured_by_lambda, by_f),
    "parameter captured by a lambda": between(captured_parameter, by_f),
    "tensor captured deeply": between(captured_deeply, by_f),
    "partial": between(by_partial, by_f),
    "partial, keyword": between(by_partial_keyword, by_f),
    "default of a lambda": between(in_default, by_f),
    "slots": between(in_slots, by_f),
    "slots, tensor": between(in_slots_tensor, by_f),
    "teacher in a list": between(teacher_in_list, by_f),
    "trained module in an object": between(trained_in_object, by_f),
    "parameter in a dict": between(parameter_in_dict, by_f),
    "number in a hook": between(hook_with_number),
    "tensor in a pre-hook": between(pre_hook_with_tensor),
    "hook on the model": between(hook_on_the_model),
    "number": between(attribute_number, by_scale),
    "array": between(attribute_numpy, by_scale),
    "list": between(attribute_list, by_scale),
    "own forward": between(own_forward),
    "global table": between(global_table, by_f),
    "iterator of numbers": between(generator_of_numbers, by_f),
    "class that captures": between(closure_over_class, by_f),
    "class attribute": between(class_attribute, by_f),
    "property": between(property_of_class, by_f),
    "hook on a parameter": between(hook_on_parameter),
    "hook after accumulation": between(post_accumulate_hook),
    "backward hook": between(full_backward_hook),
    "backward pre-hook": between(backward_pre_hook),
    "hook on an activation": between(hook_on_activation, by_f),
    "straight-through": between(use=lambda model, h: Straight.apply(h)),
    "scaled gradient": between(reversed_gradient, by_f),
    "frozen batch norm": between(frozen_batch_norm, by_norm),
    "frozen batch norm, statistics": between(random_frozen_norm, by_norm),
    "evaluation mode": between(in_evaluation_mode, by_norm_and_dropout),
    "train keeps a norm frozen": between(train_keeps_norm_frozen, by_norm),
    "running mean": between(adding(mean=torch.zeros), running_mean),
    "counting buffer": between(adding(count=lambda width: torch.zeros(())), counting),
    "integer buffer": between(
        adding(count=lambda width: torch.zeros((), dtype=torch.long)), counting
    ),
    "counter": between(with_attribute(turn=0), counted),
    "evaluation changes a buffer": between(adding(mean=torch.zeros), changes_in_evaluation),
    "batch norm": between(with_module(nn.BatchNorm1d), by_module),
    "dropout of zero": between(with_module(lambda width: nn.Dropout(0.0)), by_module),
    "weight norm": between(with_module(WEIGHT_NORM), by_module),
    "spectral norm": between(with_module(SPECTRAL), by_module),
    "orthogonal": between(with_module(ORTHOGONAL), by_module),
    "applied twice": between(with_module(SQUARE), shared_twice),
    "module under two names": between(tied, tied_use),
    "tied weights": between(weight_tied, weight_tied_use),
    "LSTM": between(with_module(lambda w: nn.LSTM(w, w, batch_first=True)), recurrent),
    "GRU": between(with_module(lambda w: nn.GRU(w, w, batch_first=True)), recurrent),
    "attention": between(
        with_module(lambda w: nn.MultiheadAttention(w, 2, batch_first=True)), attending
    ),
    "experts": between(with_module(lambda w: nn.ModuleList([SQUARE(w), SQUARE(w)])), routed),
    "recomputed": between(with_module(SEQUENTIAL), recomputed),
    "Fourier": between(use=spectral),
    "number that is read": between(use=read_number),
    "sorted": between(use=sorted_rows),
    "largest entries": between(use=top),
    "cumulative sum": between(use=cumulative),
    "decision": between(use=decided),
    "written in place": between(use=written),
    "frozen weight": between(partly_frozen),
    "unused layer": between(unused),
    "PReLU": between(with_module(lambda width: nn.PReLU()), by_module),
    "group norm": between(with_module(lambda width: nn.GroupNorm(2, width)), by_module),
    "bilinear": between(
        with_module(lambda width: nn.Bilinear(width, width, width)), lambda m, h: m.extra(h, h)
    ),
    "one convolution": between(
        with_module(lambda width: nn.Conv1d(1, 1, 3, padding=1)),
        lambda m, h: m.extra(h.unsqueeze(1)).squeeze(1),
    ),
    "logits clipped": between(use=lambda model, h: h.clamp(-0.5, 0.5)),
    "softmax with temperature": between(use=lambda model, h: F.softmax(4 * h, -1)),
}
# --- more kinds -----------------------------------------------------------------------------------


class LastBuilt(nn.Module):
    """Module that multiplies by a number of its class, which every construction replaces."""

    number = 1.0

    def __init__(self):
        super().__init__()
        LastBuilt.number = float(torch.randn(()))

    def forward(self, h):
        return h * LastBuilt.number


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


def symmetric(width):
    layer = nn.Linear(width, width)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def pruned(width):
    return prune.random_unstructured(nn.Linear(width, width), "weight", 0.5)


def permutation(model):
    model.order = nn.Parameter(torch.randperm(model.width), requires_grad=False)


def weak_table(model):
    TABLE[model] = _drawn(model)
    model.f = lambda h: h * like(TABLE[model], h)


TABLE: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()


def set_by_first_batch(model):
    model.scale, model.done = nn.Parameter(torch.ones(model.width)), False


def by_first_batch(model, h):
    if not model.done:
        with torch.no_grad():
            model.scale.copy_(h.detach().std(0) + 1)
        model.done = True
    return h / model.scale


def cached_scale(model, h):
    if model.cache is None:
        model.cache = h.detach().abs().mean()
    return h / model.cache


def averaged_teacher(model):
    model.extra = nn.Linear(model.width, model.width)
    model.teacher = nn.Linear(model.width, model.width).requires_grad_(False)


def by_averaged_teacher(model, h):
    if model.training:
        with torch.no_grad():
            pairs = zip(model.teacher.parameters(), model.extra.parameters(), strict=True)
            for average, p in pairs:
                average.lerp_(p, 0.1)
    return model.extra(h) + model.teacher(h)


def clipped_weights(model, h):
    with torch.no_grad():
        model.extra.weight.clamp_(-0.1, 0.1)
    return model.extra(h)


def in_a_ring(model, h):
    model.queue[int(model.place) % 4] = h.detach().mean(0)
    model.place += 1
    return h - model.queue.mean(0)


def reads_gradient(model, h):
    g = model.first.weight.grad
    return h if g is None else h * (1 + g.abs().mean())


def if_batched(model, h):
    try:
        return h / float(h.detach().sum())
    except RuntimeError:
        return h


def of_parameters(model, h):
    return h + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())


def low_rank(model):
    model.extra = nn.Linear(model.width, model.width).requires_grad_(False)
    model.down = nn.Parameter(torch.randn(2, model.width) / 3)
    model.up = nn.Parameter(torch.zeros(model.width, 2))


def in_random_order(model):
    model.parts = nn.ModuleList([SQUARE(model.width), SQUARE(model.width)])
    model.order = (0, 1) if torch.rand(()) < 0.5 else (1, 0)


ODD_MODELS |= {
    "class attribute of the last model": between(with_module(lambda w: LastBuilt()), by_module),
    "symmetric": between(with_module(symmetric), by_module),
    "pruned": between(with_module(pruned), by_module),
    "older spectral norm": between(with_module(lambda w: spectral_norm(SQUARE(w))), by_module),
    "integer parameter": between(permutation, lambda model, h: h[:, model.order]),
    "weak table": between(weak_table, by_f),
    "set by the first batch": between(set_by_first_batch, by_first_batch),
    "cached activation": between(with_attribute(cache=None), cached_scale),
    "averaged teacher": between(averaged_teacher, by_averaged_teacher),
    "weights clipped in place": between(with_module(SQUARE), clipped_weights),
    "ring of activations": between(
        adding(
            queue=lambda width: torch.zeros(4, width),
            place=lambda width: torch.zeros((), dtype=torch.long),
        ),
        in_a_ring,
    ),
    "reads a gradient": between(use=reads_gradient),
    "fallback": between(use=if_batched),
    "all parameters": between(use=of_parameters),
    "low rank": between(low_rank, lambda m, h: m.extra(h) + h @ m.down.T @ m.up.T),
    "random order of modules": between(
        in_random_order, lambda m, h: m.parts[m.order[1]](torch.tanh(m.parts[m.order[0]](h)))
    ),
    "matrix exponential": between(
        with_module(SQUARE),
        lambda m, h: h @ torch.linalg.matrix_exp(m.extra.weight - m.extra.weight.T),
    ),
    "rows of largest norm": between(
        with_module(lambda w: nn.Embedding(5, w, max_norm=0.5)),
        lambda m, h: h + m.extra((h[:, 0] > 0).long()),
    ),
}


# --- models that no stack can follow: refused by the proof, with a code ---------------------------

CALLS = [0]


def counted_everywhere(model, h):
    CALLS[0] += 1
    return h * (1 + 0.1 * (CALLS[0] % 7))


def with_generator(model):
    model.generator = torch.Generator().manual_seed(3)


def by_generator(model, h):
    return h + torch.randn(h.shape, generator=model.generator).to(h.dtype)


NAMED_MODELS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "global counter": (between(use=counted_everywhere), "not-repeatable"),
    "draws of numpy": (
        between(use=lambda model, h: h * (1 + np.random.rand())),
        "draws-outside-torch",
    ),
    "draws of Python": (
        between(use=lambda model, h: h * (1 + random.random())),
        "draws-outside-torch",
    ),
    "generator of the model": (between(with_generator, by_generator), "draws-outside-torch"),
    "class attribute of the last model": (
        ODD_MODELS["class attribute of the last model"],
        "stack-deviates",
    ),
}


# --- random draws: every member of a stack draws those of its stand-alone run ---------------------


def from_a_fixed_seed(model, h):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        fixed = torch.randn(h.shape[-1], dtype=h.dtype)
    return h * fixed + 0.1 * torch.randn_like(h)


def drawn_once(model, h):
    if model.drawn is None:
        model.drawn = torch.randn(h.shape[-1], dtype=h.dtype)
    return h * model.drawn


def drawn_later(model, h):
    model.turn += 1
    return h * torch.rand((), dtype=h.dtype) if model.turn > 4 else h


def of_rows(model, h):
    return h * torch.empty(len(h), 1, dtype=h.dtype).bernoulli_(0.5)


def of_versions(model, h):
    return h * (1 + 0.1 * (model.first.weight._version % 5))


DRAWING: dict[str, Callable[[int], nn.Module]] = {
    "dropout": between(with_module(lambda width: nn.Dropout(0.5)), by_module),
    "noise": between(use=noise),
    "alpha dropout": between(with_module(lambda width: nn.AlphaDropout(0.2)), by_module),
    "drawn once": between(with_attribute(drawn=None), drawn_once),
    "draws written in place": between(use=of_rows),
    "fixed seed": between(use=from_a_fixed_seed),
}
NAMED_MODELS["version counter"] = (between(use=of_versions), "reads-version")
ODD_MODELS |= DRAWING
ODD_MODELS |= {
    "layer drop": between(with_module(SQUARE), layer_drop),
    "draws of later steps": between(with_attribute(turn=0), drawn_later),
}
# kinds that no list of attributes shows, or that were trained wrongly in silence
SAMPLE = (
    "dropout",
    "drawn once",
    "draws written in place",
    "fixed seed",
    "layer drop",
    "draws of later steps",
    "tensor captured by a lambda",
    "partial, keyword",
    "slots",
    "teacher in a list",
    "trained module in an object",
    "number in a hook",
    "global table",
    "class attribute",
    "hook on a parameter",
    "backward pre-hook",
    "hook on an activation",
    "frozen batch norm, statistics",
    "evaluation mode",
    "evaluation changes a buffer",
    "counter",
    "integer parameter",
    "weight norm",
)
