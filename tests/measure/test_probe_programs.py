"""Recorded steps of compiled models: programs that record, equal to uncompiled passes."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch
from probe_oracle import IGNORE_GRAD_WARNING, Shared, adamw, batch, squares, twins
from torch import Tensor, nn

import orderone as o1
from orderone.observe.compiled_regions import _PROGRAMS, regions_of
from orderone.observe.pass_program import PassProgram

pytestmark = [
    IGNORE_GRAD_WARNING,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
]
KEYS = ["step", "module", "quantity"]


class Branch(nn.Module):
    """A layer inside of a model, whose output `wrap` wraps."""

    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]):
        super().__init__()
        self.layer, self.wrap, self.unwrap = Wrapped(wrap), wrap, unwrap
        self.last = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.unwrap(self.layer(x)))


class Wrapped(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]):
        super().__init__()
        self.linear, self.wrap = nn.Linear(6, 6), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.linear(x))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class PassesOn(nn.Module):
    """Dropout without effect returns its input, which no module computed."""

    def __init__(self, again: bool):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 6), nn.Dropout(0.0), nn.Linear(6, 6)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + x
        kept = self.drop(h)
        if self.again:
            kept = kept.tanh() + h
        return self.last(kept)


def sequence(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *modules, nn.Linear(8, 6))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a shared module": Shared,
    "in place": lambda: sequence(nn.ReLU(inplace=True), nn.LayerNorm(8)),
    "nested, with running averages": lambda: sequence(
        nn.Sequential(nn.BatchNorm1d(8), nn.Identity(), nn.Tanh())
    ),
    "tuple": lambda: Branch(lambda y: (y, y.tanh()), lambda v: v[0]),
    "the same tensor twice": lambda: Branch(lambda y: (y, y), lambda v: v[0] + v[1]),
    "dict": lambda: Branch(lambda y: {"a": y.argmax(-1), "b": y}, lambda v: v["b"]),
    "named tuple": lambda: Branch(lambda y: Pair(y, y.exp()), lambda v: v.first),
    "complex": lambda: Branch(lambda y: torch.fft.fft(y), lambda v: v.abs()),
    "integers": lambda: Branch(lambda y: (y > 0).long(), lambda v: v.float()),
    "no gradient": lambda: Branch(lambda y: y.detach(), lambda v: v),
    "passed on": lambda: PassesOn(False),
}


def trained(model: Any, steps: int = 4, passes: int = 1, **options: Any) -> pd.DataFrame:
    optimizer = adamw(model)
    with o1.probe(model, optimizer, **options) as p:
        for step in range(steps):
            optimizer.zero_grad()
            for k in range(passes):
                squares(model, passes * step + k).backward()
            optimizer.step()
    return p.frame.set_index(KEYS).sort_index()


def equal(found: pd.DataFrame, wanted: pd.DataFrame, rel: float = 1e-5) -> None:
    assert found.index.equals(wanted.index)
    scale = wanted[["rms"]].to_numpy()
    error = (found - wanted).abs().to_numpy() - rel * wanted.abs().to_numpy() - rel * scale
    assert (error <= 1e-12).all(), found[(error > 1e-12).any(axis=1)]


def programs(model: nn.Module) -> list[PassProgram]:
    return [program for found in _PROGRAMS.values() for program in found.values()]


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    _PROGRAMS.clear()


def counted(backend: str = "aot_eager") -> tuple[Callable[..., Any], list[int]]:
    graphs: list[int] = []
    inner = torch._dynamo.lookup_backend(backend)

    def compile_graph(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return inner(graph, inputs)

    return compile_graph, graphs


@pytest.mark.parametrize("kind", MODELS)
def test_a_program_records_what_an_uncompiled_pass_would(kind):
    model, plain = twins(MODELS[kind])
    backend, graphs = counted()
    equal(trained(torch.compile(model, backend=backend)), trained(plain))
    assert len(graphs) == 1  # steps 1, 2 and 3; the first step is the survey
    (program,) = programs(model)
    assert program.reason is None
    assert program.has_run


@pytest.mark.parametrize("way", ["model.compile", "part"])
def test_models_compiled_in_other_ways(way):
    model, plain = twins(MODELS["tuple"])
    backend, graphs = counted()
    if way == "model.compile":
        model.compile(backend=backend)
    else:
        model.layer = torch.compile(model.layer, backend=backend)
    equal(trained(model, steps=6, every=2), trained(plain, steps=6, every=2))
    assert len(graphs) == 2
    assert [region.name for region in regions_of(model)] == ["" if way != "part" else "layer"]


def test_several_passes_in_a_step_are_counted_together():
    model, plain = twins(MODELS["tuple"])
    backend, graphs = counted()
    equal(
        trained(torch.compile(model, backend=backend), passes=3),
        trained(plain, passes=3),
    )
    assert len(graphs) == 1


def test_a_second_probe_uses_the_program_again_and_other_programs_stay():
    model, _ = twins(Shared)
    backend, graphs = counted()
    compiled: Any = torch.compile(model, backend=backend)
    trained(compiled, every=2)
    assert len(graphs) == 2
    trained(compiled, every=2)
    assert len(graphs) == 2
    squares(compiled, 0).backward()
    assert len(graphs) == 2
    assert "forward" not in vars(model)
    assert not any(module._forward_hooks for module in compiled.modules())


def test_other_choices_have_programs_of_their_own():
    model, plain = twins(Shared)
    compiled: Any = torch.compile(model, backend="aot_eager")
    choices: list[dict[str, Any]] = [
        {"quantities": "output gradient"},
        {"quantities": "input"},
        {"modules": "lay*"},
    ]
    for options in choices:
        fresh, start = copy.deepcopy(compiled), copy.deepcopy(plain)
        equal(trained(fresh, **options), trained(start, **options))


def test_evaluations_in_a_recorded_step_run_the_program_of_the_user():
    model, _ = twins(Shared)
    backend, graphs = counted()
    compiled: Any = torch.compile(model, backend=backend)
    optimizer = adamw(model)
    rows = []
    with o1.probe(compiled, optimizer) as p:
        for step in range(3):
            with torch.no_grad():
                compiled(batch(9, 5, 6))
            squares(compiled, step).backward()
            optimizer.step()
            rows.append(len(p.frame))
    assert len(graphs) == 2
    assert rows[2] - rows[1] == rows[1] - rows[0] == rows[0]


@pytest.mark.parametrize("in_place", [False, True])
def test_without_an_optimizer_every_pass_is_a_step(in_place):
    model, plain = twins(Shared)
    frames = []
    backend, graphs = counted()
    compiled: Any = model
    if in_place:
        model.compile(backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
    for watched in (compiled, plain):
        with o1.probe(watched, every=2) as p:
            for step in range(7):
                watched.zero_grad()
                squares(watched, step).backward()
        frames.append(p.frame.set_index(KEYS).sort_index())
    assert len(graphs) == 2
    assert set(frames[0].index.get_level_values("step")) == {0, 2, 4, 6}
    equal(*frames)


def test_shapes_may_change_and_precisions_may_be_mixed():
    model, plain = twins(MODELS["in place"])
    frames = []
    compiled: Any = torch.compile(model, backend="aot_eager")
    for watched in (compiled, plain):
        optimizer = torch.optim.SGD(watched.parameters(), lr=0.1)
        with o1.probe(watched, optimizer) as p:
            for rows in (5, 5, 7, 9, 3):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    watched(batch(rows, rows, 6)).float().square().mean().backward()
                optimizer.step()
        frames.append(p.frame.set_index(KEYS).sort_index())
    equal(*frames, rel=1e-3)


@pytest.mark.slow
def test_inductor_gives_the_same_numbers():
    model, plain = twins(MODELS["in place"])
    equal(trained(torch.compile(model)), trained(plain), rel=1e-4)


def test_nothing_keeps_a_model_alive():
    model, _ = twins(Shared)
    compiled: Any = torch.compile(model, backend="aot_eager")
    trained(compiled)
    alive = weakref.ref(model)
    del model, compiled
    torch._dynamo.reset()
    gc.collect()
    assert alive() is None
    assert not len(_PROGRAMS)


# --- recorded steps that run uncompiled -----------------------------------------------------------


def uncompiled(model: nn.Module, plain: nn.Module, backend: Any = "aot_eager") -> str:
    """Return the reason for which recorded steps run uncompiled; their records are right."""
    with pytest.warns(UserWarning, match="probe-uncompiled"):
        found = trained(torch.compile(model, backend=backend))
    equal(found, trained(plain))
    (program,) = programs(model)
    assert program.reason is not None
    return program.reason


def test_a_backend_that_fails():
    def failing(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("this operation is missing")

    assert "this operation is missing" in uncompiled(*twins(Shared), backend=failing)


def test_a_forward_that_was_replaced():
    def build() -> nn.Module:
        model = Shared()
        model.forward = lambda x: model.layer(x)  # type: ignore[method-assign]
        return model

    model, plain = build(), build()
    plain.load_state_dict(model.state_dict())
    assert "not a method" in uncompiled(model, plain)


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x).tanh()
            torch._dynamo.graph_break()
        return x


def test_a_model_of_many_graphs():
    model, plain = twins(Breaks)
    assert "graph breaks" in uncompiled(model, plain)
    assert torch.equal(model.norm.running_mean, plain.norm.running_mean)


def test_a_tensor_that_is_passed_on_and_used_elsewhere():
    """Its gradient has two parts, of which a program would see one."""
    assert "drop returns its input" in uncompiled(*twins(lambda: PassesOn(True)))


class Holder:
    def __init__(self, logits: Tensor):
        self.logits = logits


def test_an_output_that_cannot_be_replaced():
    reason = uncompiled(*twins(lambda: Branch(lambda y: Holder(y.tanh()), lambda v: v.logits)))
    assert "cannot open" in reason


class Alternates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 5:
            return self.first(x)
        return self.second(x)


def test_calls_that_differ_from_pass_to_pass():
    model = Alternates()
    compiled: Any = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(rows: int) -> None:
        compiled(batch(rows, rows, 6)).square().mean().backward()
        optimizer.step()

    with o1.probe(compiled, optimizer) as p:
        train(5)
        train(5)
        with pytest.warns(UserWarning, match="probe-uncompiled"):
            train(4)
        train(4)
    frame = p.frame
    modules = frame[frame.quantity == "output"].groupby("step")["module"].apply(set).to_dict()
    # the step whose calls were others has the records of the whole model alone
    assert modules == {0: {"", "first"}, 1: {"", "first"}, 2: {""}, 3: {"", "second"}}


def test_gradients_of_parameters_only():
    model, _ = twins(Shared)
    compiled: Any = torch.compile(model, backend="aot_eager")
    optimizer = adamw(model)

    def train(step: int) -> None:
        gradients = torch.autograd.grad(squares(compiled, step), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    with o1.probe(compiled, optimizer) as p:
        train(0)
        with pytest.warns(UserWarning, match="probe-uncompiled"):
            train(1)
        train(2)
    frame = p.frame
    inner = frame[(frame.quantity == "output gradient") & (frame["module"] == "layer")]
    assert sorted(inner.step) == [0, 2]
