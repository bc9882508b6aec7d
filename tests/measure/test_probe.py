"""The probe: every number against a plain loop, nothing changed by looking, nothing left behind."""

import copy
import gc
import random
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.probe_workers import PROCESSES, STEPS, inputs, net, process
from support.zoo import BATCH, CLASSES, FEATURES, HEAD, LENGTH, ZOO, Entry
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import orderone as o1
from orderone.measure.optimizer_steps import decay_of
from orderone.measure.recording import DEFAULT, QUANTITIES
from orderone.observe.batches import repeatable
from orderone.observe.moments import Ledger

SIZES = ["rms", "mean", "max", "finite"]
TORCHS_OWN = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo hides it
Seen = dict[tuple[int, str, str], list[Tensor]]


# --- the oracle -----------------------------------------------------------------------------------


def sizes(*parts: Tensor) -> list[float]:
    """Of all entries together, in double precision."""
    x = torch.cat([part.detach().double().flatten() for part in parts]).numpy()
    return [
        float(np.sqrt(np.mean(x**2))),
        float(x.mean()),
        float(np.abs(x).max()),
        float(np.isfinite(x).mean()),
    ]


def table(frame: pd.DataFrame) -> dict[tuple[int, str, str], list[float]]:
    assert not frame.duplicated(["step", "module", "quantity"]).any()
    return {
        (r["step"], r["module"], r["quantity"]): [r[s] for s in SIZES]
        for r in frame.to_dict("records")
    }


def agree(frame: pd.DataFrame, seen: Seen, rel: float = 1e-5) -> None:
    """Every line is one of the oracle's, every one of the oracle's has a line, and all four numbers
    are the same."""
    found = table(frame)
    assert found.keys() == seen.keys()
    for key, parts in seen.items():
        # a mean is a difference of large sums: its error is relative to the entries
        assert found[key] == pytest.approx(
            sizes(*parts), rel=rel, abs=rel * sizes(*parts)[0], nan_ok=True
        ), key


def main(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.dim() else None
    if getattr(value, "logits", None) is not None:
        return value.logits
    values = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (tuple, list))
        else ()
    )
    return next((x for x in map(main, values) if x is not None), None)


@dataclass
class ByHand:
    """Hooks that copy everything, gradients that are retained, weights copied around every step."""

    model: nn.Module
    seen: Seen
    step: int = 0

    @contextmanager
    def watch(self) -> Iterator["ByHand"]:
        self.given: list[tuple[str, Tensor]] = []
        hooks = []
        for name, module in self.model.named_modules():
            hooks.append(
                module.register_forward_pre_hook(
                    lambda m, a, k, n=name: self._in(n, (a, k)), with_kwargs=True
                )
            )
            hooks.append(module.register_forward_hook(lambda m, a, y, n=name: self._out(n, y)))
        yield self
        for hook in hooks:
            hook.remove()

    def add(self, name: str, quantity: str, x: Tensor) -> None:
        self.seen.setdefault((self.step, name, quantity), []).append(x.detach().clone())

    def _in(self, name: str, value: Any) -> None:
        if torch.is_grad_enabled() and (x := main(value)) is not None:
            self.add(name, "input", x)

    def _out(self, name: str, value: Any) -> None:
        if torch.is_grad_enabled() and (x := main(value)) is not None:
            self.add(name, "output", x)
            if x.requires_grad:
                x.retain_grad()
                self.given.append((name, x))

    def end(self, stepping: Callable[[], Any]) -> None:
        for name, x in self.given:
            if x.grad is not None:
                self.add(name, "output gradient", x.grad)
        self.given = []
        before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            self.add(name, "weight", p)
            if p.grad is not None:
                self.add(name, "gradient", p.grad.to_dense())
        stepping()
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                self.add(name, "update", p.detach() - before[name])
        self.step += 1


def outputs(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
    """What every module gives in a pass without gradients."""
    found: dict[str, list[Tensor]] = {}

    def keep(name: str, y: Any) -> None:
        if (x := main(y)) is not None:
            found.setdefault(name, []).append(x.clone())

    hooks = [
        m.register_forward_hook(lambda m, a, y, n=n: keep(n, y)) for n, m in model.named_modules()
    ]
    with torch.no_grad():
        model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return found


def twins(build: Callable[[], Any]) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = build()
    return model, copy.deepcopy(model)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def compare(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, int], Tensor],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    steps: int = 2,
    passes: int = 1,
    rel: float = 1e-5,
) -> Any:
    """Train one twin under the probe, the other by hand; `loss(model, number of the pass)`. The
    frame, if they agree."""
    model, other = twins(build)
    stepper, seen = optimizer(model), {}
    with o1.probe(model, stepper) as p:
        for step in range(steps):
            stepper.zero_grad()
            for i in range(passes):
                loss(model, step * passes + i).backward()
            stepper.step()
    stepper = optimizer(other)
    with ByHand(other, seen).watch() as hand:
        for step in range(steps):
            stepper.zero_grad()
            for i in range(passes):
                loss(other, step * passes + i).backward()
            hand.end(stepper.step)
    agree(p.frame, seen, rel)
    return p.frame


def batch(number: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number))


def squares(model: nn.Module, number: int) -> Tensor:
    return model(batch(number, 5, 6)).square().mean()


def zoo_loss(entry: Entry) -> Callable[[nn.Module, int], Tensor]:
    def loss(model: nn.Module, number: int) -> Tensor:
        given = entry.batch(number)
        return entry.loss(model(**given), given)

    return loss


# --- the numbers ----------------------------------------------------------------------------------


def test_an_mlp_written_out():
    """No hooks on this side at all: the layers are applied one by one."""
    model, other = twins(lambda: ZOO["mlp"].build(32).net)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), batch(0, BATCH, FEATURES)
    with o1.probe(model, optimizer, batch=x) as p:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    found, first = table(p.frame), []
    for step in range(4):
        h, given = x, [x]
        for layer in other:
            h = (
                functional.linear(h, layer.weight, layer.bias)
                if isinstance(layer, nn.Linear)
                else h.clamp(min=0)
            )
            given.append(h)
        first = first or given
        for i in range(1, len(given)):
            if step:
                assert found[step, str(i - 1), "change"] == pytest.approx(
                    sizes(given[i] - first[i]), rel=1e-4, abs=1e-7
                )
        if step == 3:
            break
        parameters = dict(other.named_parameters())
        gradients = torch.autograd.grad(h.square().sum(), [*given[1:], *parameters.values()])
        for i in range(1, len(given)):
            assert found[step, str(i - 1), "input"] == pytest.approx(
                sizes(given[i - 1]), rel=1e-5, abs=1e-6
            )
            assert found[step, str(i - 1), "output"] == pytest.approx(
                sizes(given[i]), rel=1e-5, abs=1e-6
            )
            wanted = sizes(gradients[i - 1])
            assert found[step, str(i - 1), "output gradient"] == pytest.approx(
                wanted, rel=1e-4, abs=1e-6
            )
        for (name, p_), gradient in zip(
            parameters.items(), gradients[len(given) - 1 :], strict=True
        ):
            assert found[step, name, "weight"] == pytest.approx(sizes(p_), rel=1e-5, abs=1e-7)
            assert found[step, name, "gradient"] == pytest.approx(
                sizes(gradient), rel=1e-4, abs=1e-6
            )
            assert found[step, name, "update"] == pytest.approx(
                sizes(-0.1 * gradient), rel=1e-4, abs=1e-6
            )
            p_.data.sub_(0.1 * gradient)
    assert (3, "0", "output") not in found
    assert (0, "0", "change") not in found


@pytest.mark.parametrize(
    "name", ["mlp", "gpt2", "llama-gqa", "cnn-batchnorm", "nn-transformer-encoder", "lstm", "t5"]
)
def test_models_of_the_zoo(name):
    entry = ZOO[name]
    frame = compare(lambda: entry.build(32, 1), zoo_loss(entry))
    assert set(frame["quantity"]) == set(DEFAULT) - {"change"}
    assert frame.loc[frame["quantity"] == "output", "module"].nunique() >= 4


def test_the_change_of_gpt2_is_that_of_every_module_on_the_fixed_batch():
    entry = ZOO["gpt2"]
    model, other = twins(lambda: entry.build(32))
    optimizer, fixed = adamw(model), entry.batch(7)
    with o1.probe(model, optimizer, batch=fixed, quantities="change") as p:
        entry.train(model, optimizer, steps=2)
    optimizer, first, seen = adamw(other), outputs(other, **fixed), {}
    for step in (1, 2):
        entry.train(other, optimizer, steps=1)
        for module, found in outputs(other, **fixed).items():
            seen[step, module, "change"] = [
                y - x for x, y in zip(first[module], found, strict=True)
            ]
    agree(p.frame, seen, rel=1e-3)


def test_scores_of_gpt2_are_those_of_queries_and_keys():
    entry, width = ZOO["gpt2"], 32
    model = twins(lambda: entry.build(width))[0]
    optimizer, fixed = adamw(model), entry.batch(0)

    def scores() -> list[Tensor]:
        found = []
        for name, y in outputs(model, **fixed).items():
            if name.endswith("c_attn"):
                q, k, _ = (x.unflatten(-1, (-1, HEAD)).transpose(1, 2) for x in y[0].chunk(3, -1))
                full = q.double() @ k.double().mT / HEAD**0.5
                found.append(full[..., torch.ones(LENGTH, LENGTH).tril().bool()])
        return found

    before = scores()
    with o1.probe(model, optimizer, batch=fixed, quantities=["scores", "score change"]) as p:
        entry.train(model, optimizer, steps=1)
    found, after = table(p.frame), scores()
    for i in range(2):
        name = f"transformer.h.{i}.attn"
        assert found[0, name, "scores"] == pytest.approx(sizes(before[i]), rel=1e-4, abs=1e-6)
        assert found[1, name, "score change"] == pytest.approx(
            sizes(after[i] - before[i]), rel=1e-3, abs=1e-6
        )
    assert len(found) == 4


# --- steps and passes -----------------------------------------------------------------------------


def test_accumulated_passes_are_counted_together():
    frame = compare(net, squares, passes=3)
    assert set(frame["step"]) == {0, 1}


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


def test_a_module_called_twice_is_counted_twice():
    compare(Shared, squares)


def test_change_of_a_module_called_twice_is_call_by_call():
    model, other = twins(Shared)
    optimizer, x = adamw(model), batch(0, 5, 6)
    with o1.probe(model, optimizer, batch=x) as p:
        squares(model, 0).backward()
        optimizer.step()
    first, now = outputs(other, x)["layer"], outputs(model, x)["layer"]
    wanted = sizes(*(b - a for a, b in zip(first, now, strict=True)))
    assert table(p.frame)[1, "layer", "change"] == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_without_an_optimizer_every_pass_is_a_step():
    model, other = twins(net)
    with o1.probe(model, batch=batch(9, 5, 6)) as p:
        for step in range(3):
            model.zero_grad()
            squares(model, step).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad  # pyright: ignore
    seen: Seen = {}
    first = outputs(other, batch(9, 5, 6))
    other.load_state_dict(twins(net)[0].state_dict())  # running averages
    with ByHand(other, seen).watch() as hand:
        for step in range(3):
            other.zero_grad()
            if step:
                kept = copy.deepcopy(other.state_dict())
                now = outputs(other, batch(9, 5, 6))
                other.load_state_dict(kept)
                seen |= {(step, name, "change"): [now[name][0] - first[name][0]] for name in now}
            squares(other, step).backward()
            hand.end(
                lambda: [
                    p.data.sub_(0.1 * p.grad) for p in other.parameters() if p.grad is not None
                ]
            )
    agree(p.frame, {key: x for key, x in seen.items() if key[2] != "update"}, rel=1e-4)


@pytest.mark.parametrize("optimizer", [adamw, lambda model: None])
def test_every_third_step(optimizer):
    model, other = twins(net)
    frames = []
    for each, every in ((model, 1), (other, 3)):
        made = optimizer(each)
        with o1.probe(each, made, every=every, batch=batch(9, 5, 6)) as p:
            for step in range(8):
                each.zero_grad()
                squares(each, step).backward()
                if made:
                    made.step()
        frames.append(p.frame)
    every, third = frames
    assert sorted(set(third["step"])) == [0, 3, 6]
    wanted = every[every["step"] % 3 == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(third, wanted)


def test_passes_without_gradients_are_not_recorded():
    def run(look: bool) -> pd.DataFrame:
        model = twins(net)[0]
        optimizer = adamw(model)
        with o1.probe(model, optimizer, batch=batch(9, 5, 6)) as p:
            for step in range(2):
                squares(model, step).backward()
                if look:
                    model.eval()
                    with torch.no_grad():
                        model(100 * batch(5, 5, 6))
                    with torch.inference_mode():
                        model(100 * batch(5, 5, 6))
                    model.train()
                optimizer.step()
        return p.frame

    pd.testing.assert_frame_equal(run(look=True), run(look=False))


def test_without_an_optimizer_a_pass_without_gradients_is_no_step():
    model = net()
    with o1.probe(model) as p:
        for step in range(2):
            squares(model, step).backward()
            with torch.no_grad():
                model(batch(0, 5, 6))
    assert set(p.frame["step"]) == {0, 1}


@pytest.mark.parametrize(
    ("reentrant", "optimizer"), [(False, adamw), (True, adamw), (False, lambda model: None)]
)
def test_checkpointed_activations_are_those_of_the_plain_model(reentrant, optimizer):
    frames = []
    for checkpointed in (True, False):
        model = twins(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)))[0]
        made = optimizer(model)
        with o1.probe(model, made) as p:
            for step in range(2):
                model.zero_grad()
                x = batch(step, 5, 6).requires_grad_()
                y = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
                y.square().mean().backward()
                if made:
                    made.step()
        frames.append(table(p.frame))
    assert frames[0].keys() == frames[1].keys()
    for key, found in frames[0].items():
        assert found == pytest.approx(frames[1][key], rel=1e-5, abs=1e-7), key


@pytest.mark.parametrize("by_sample", [False, True])
def test_gradients_as_functions(by_sample):
    """torch.func: what a pass gives is that of all samples together."""
    model, plain = twins(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()))
    x, parameters = batch(0, 5, 6), dict(model.named_parameters())

    def loss(parameters: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    gradient = torch.func.grad(loss)
    with o1.probe(model, quantities=["input", "output"]) as p:
        (torch.func.vmap(gradient, (None, 0)) if by_sample else gradient)(parameters, x)
    h = plain[0](x)
    found = table(p.frame)
    for name, one, two in (("0", x, h), ("1", h, h.tanh()), ("", x, h.tanh())):
        assert found[0, name, "input"] == pytest.approx(sizes(one), rel=1e-5, abs=1e-6)
        assert found[0, name, "output"] == pytest.approx(sizes(two), rel=1e-5, abs=1e-6)


def test_a_model_without_memory_has_nothing_to_measure():
    model = nn.Linear(6, 3, device="meta")
    with o1.probe(model) as p:
        model(torch.empty(5, 6, device="meta"))
    assert p.frame.empty


def test_the_frame_can_be_read_inside_the_context():
    model = net()
    optimizer = adamw(model)
    with o1.probe(model, optimizer) as p:
        assert p.frame.empty
        assert list(p.frame) == ["step", "module", "quantity", *SIZES]
        for step in range(2):
            squares(model, step).backward()
            assert set(p.frame["step"]) == set(range(step))
            optimizer.step()
        inside = p.frame
    pd.testing.assert_frame_equal(p.frame, inside)


# --- what to look at ------------------------------------------------------------------------------


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int = 2, **options: Any) -> Any:
    with o1.probe(model, optimizer, **options) as p:
        for step in range(steps):
            optimizer.zero_grad()
            squares(model, step).backward()
            optimizer.step()
    return p.frame


@pytest.mark.parametrize("quantity", DEFAULT)
def test_one_quantity_is_the_same_alone(quantity):
    model, other = twins(net)
    alone = train(model, adamw(model), quantities=quantity, batch=batch(9, 5, 6))
    everything = train(other, adamw(other), batch=batch(9, 5, 6))
    assert set(alone["quantity"]) == {quantity}
    pd.testing.assert_frame_equal(
        alone, everything[everything["quantity"] == quantity].reset_index(drop=True)
    )


@pytest.mark.parametrize("patterns", ["0*", ["0*", "3.bias"]])
def test_some_modules(patterns):
    model, other = twins(net)
    some, everything = train(model, adamw(model), modules=patterns), train(other, adamw(other))
    wanted: Any = {"0", "0.weight", "0.bias"} | (
        {"3.bias"} if isinstance(patterns, list) else set()
    )
    assert set(some["module"]) == wanted
    pd.testing.assert_frame_equal(
        some, everything[everything["module"].isin(wanted)].reset_index(drop=True)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, "model: expected a Module"),
        ({"optimizer": "adamw"}, "optimizer: expected a Optimizer"),
        ({"quantities": "outputs"}, "unknown quantity.*did you mean 'output'"),
        ({"modules": "head*"}, r"modules: nothing is called 'head\*'"),
        ({"every": 0}, "every: expected a whole number"),
        ({"batch": 3}, "batch: expected"),
        (
            {"batch": (torch.zeros(2, FEATURES), torch.zeros(2))},
            "batch: expected what the model is called with",
        ),
        (
            {"batch": {"inputs": torch.zeros(2, FEATURES)}},
            "batch: expected what the model is called with",
        ),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message), o1.probe(options.pop("model", net()), **options):
        pass


def test_provenance_and_units_are_in_the_frame():
    model = net()
    frame = train(model, adamw(model), provenance={"seed": 3})
    assert frame.attrs["provenance"]["seed"] == 3
    assert frame.attrs["provenance"]["torch"] == torch.__version__
    assert set(frame.attrs["units"]) == {"step", *SIZES}


# --- what modules give ----------------------------------------------------------------------------


class Gives(nn.Module):
    """A linear layer whose output is wrapped up by `wrap`."""

    def __init__(self, wrap: Callable[[Tensor], Any]):
        super().__init__()
        self.layer, self.wrap = nn.Linear(6, 4), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


class Outer(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]):
        super().__init__()
        self.inner, self.unwrap = Gives(wrap), unwrap

    def forward(self, x: Tensor) -> Tensor:
        return self.unwrap(self.inner(x))


def model_output(y: Tensor) -> Any:
    from transformers.modeling_outputs import CausalLMOutput

    return CausalLMOutput(loss=y.square().mean(), logits=y)  # type: ignore[arg-type]


WRAPPED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda y: (y, y.tanh()), lambda v: v[0]),
    "dict": (lambda y: {"first": y, "second": None}, lambda v: v["first"]),
    "nested": (lambda y: [{"state": (y,)}, 1], lambda v: v[0]["state"][0]),
    "integers first": (lambda y: (y.argmax(-1), y), lambda v: v[1]),
    "scalar first": (lambda y: (y.sum(), y), lambda v: v[1]),
    "empty first": (lambda y: (y[:0], y), lambda v: v[1]),
    "ModelOutput": (model_output, lambda v: v.logits),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_the_tensor_that_carries_the_signal_is_found(kind):
    wrap, unwrap = WRAPPED[kind]
    model, plain = twins(lambda: Outer(wrap, unwrap))
    plain.inner.wrap, plain.unwrap = lambda y: y, lambda y: y
    frame, wanted = train(model, adamw(model)), train(plain, adamw(plain))
    assert (frame["module"] == "inner").any()
    pd.testing.assert_frame_equal(frame, wanted)


@pytest.mark.parametrize(
    "give",
    [
        lambda y: None,
        lambda y: "text",
        lambda y: y.argmax(-1),
        lambda y: y > 0,
        lambda y: y[:0],
        lambda y: y.sum(),
        lambda y: y.to_sparse(),
        lambda y: type("Out", (), {"logits": y[:0]})(),
        lambda y: type("Out", (), {"logits": y.argmax(-1)})(),
    ],
    ids=[
        "nothing",
        "text",
        "integers",
        "booleans",
        "empty",
        "scalar",
        "sparse",
        "empty logits",
        "integer logits",
    ],
)
def test_modules_that_give_nothing_to_measure_have_no_output(give):
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.aside = nn.Linear(6, 4), nn.Module()
            self.aside.forward = give  # type: ignore[method-assign]

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            self.aside(y)
            return y

    model = Aside()
    frame = train(model, adamw(model))
    assert set(frame.loc[frame["module"] == "aside", "quantity"]) == {"input"}
    assert set(frame.loc[frame["module"] == "layer", "quantity"]) == {
        "input",
        "output",
        "output gradient",
    }


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.fourier = nn.Module()
        self.fourier.forward = torch.fft.rfft  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(self.fourier(x) * self.filter)


def test_complex_numbers_have_the_sizes_of_their_moduli():
    model, other = twins(Complex)
    frame = table(
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1, batch=batch(9, 5, 6))
    )
    spectrum = torch.fft.rfft(batch(0, 5, 6))
    torch.fft.irfft(spectrum * other.filter).square().mean().backward()
    assert frame[0, "fourier", "output"] == pytest.approx(sizes(spectrum.abs()), rel=1e-5)
    assert frame[0, "filter", "weight"] == pytest.approx(sizes(other.filter.abs()), rel=1e-5)
    assert frame[0, "filter", "gradient"] == pytest.approx(sizes(other.filter.grad.abs()), rel=1e-5)
    assert frame[0, "filter", "update"] == pytest.approx(
        sizes(0.1 * other.filter.grad.abs()), rel=1e-4
    )
    assert frame[1, "fourier", "change"] == [0, 0, 0, 1]


def test_an_in_place_activation_does_not_change_what_was_seen_before_it():
    def build(inplace: bool) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(inplace), nn.Linear(8, 8), nn.Hardtanh(-0.1, 0.1, inplace)
        )

    model, plain = twins(lambda: build(True))[0], twins(lambda: build(False))[0]
    frame, wanted = train(model, adamw(model)), train(plain, adamw(plain))
    assert table(frame).keys() == table(wanted).keys()
    for key, found in table(frame).items():
        assert found == pytest.approx(table(wanted)[key], rel=1e-6), key
    assert (
        table(frame)[0, "0", "output"][1] < table(frame)[0, "1", "output"][1]
    )  # which relu makes positive


def test_sparse_gradients_have_the_sizes_of_dense_ones():
    frames = []
    for sparse in (True, False):
        model = twins(
            lambda sparse=sparse: nn.Sequential(nn.Embedding(50, 6, sparse=sparse), nn.Linear(6, 2))
        )[0]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with o1.probe(model, optimizer) as p:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.tensor([[1, 2, 2], [7, 1, 1]])).square().sum().backward()
                optimizer.step()
        frames.append(table(p.frame))
    assert frames[0].keys() == frames[1].keys()
    for key, found in frames[0].items():
        assert found == pytest.approx(frames[1][key], rel=1e-5, abs=1e-8), key


def test_entries_that_are_not_finite_are_counted():
    x = batch(0, 5, 6)
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
    model = nn.Sequential(nn.Identity(), nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with o1.probe(model, optimizer) as p:
        model(x).sum().backward()
        optimizer.step()
        model(torch.where(x.isnan(), 0, x)).sum().backward()
    found = table(p.frame)
    assert found[0, "0", "output"] == pytest.approx([np.nan, np.nan, np.nan, 27 / 30], nan_ok=True)
    assert found[1, "0", "output"] == pytest.approx([np.inf, np.nan, np.inf, 28 / 30], nan_ok=True)
    assert found[0, "1", "output"][3] == pytest.approx(2 / 5)
    assert found[0, "1.weight", "gradient"][3] == pytest.approx(1 / 2)
    assert found[0, "1.weight", "weight"][3] == 1


def test_frozen_and_odd_parameters():
    """No gradient and no update where there is none; integers are nothing to measure."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model[1].codes = nn.Parameter(torch.arange(3), requires_grad=False)
    model[1].none = nn.Parameter(torch.empty(0, 4))
    found = table(train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1))
    assert {q for _, name, q in found if name == "0.weight"} == {"weight"}
    assert {q for _, name, q in found if name == "1.weight"} == {"weight", "gradient", "update"}
    assert not {name for _, name, _ in found} & {"1.codes", "1.none"}
    assert (0, "0", "output gradient") not in found


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rel"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-5), (torch.float16, 1e-5)]
)
def test_other_precisions(dtype, rel):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)

    compare(
        build,
        lambda m, i: m(batch(i, 5, 6).to(dtype)).square().mean(),
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        rel=rel,
    )


def moments(x: Tensor) -> list[float]:
    ledger = Ledger()
    ledger.add(x)
    return list(ledger.fetch()[0].row())


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e25])
@pytest.mark.parametrize("shape", [(7,), (300, 400), (3, 5, 70001)])
def test_sizes_of_small_large_and_many_numbers(shape, scale):
    x = (1 + batch(0, *shape)) * scale
    assert moments(x) == pytest.approx(sizes(x), rel=1e-6)
    assert moments(x.transpose(0, -1)) == pytest.approx(sizes(x), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_sizes_of_eight_bits(dtype):
    x = batch(0, 64).to(dtype)
    assert moments(x) == pytest.approx(sizes(x.float()), rel=1e-6)


def test_one_entry_in_many_that_is_not_finite():
    x = torch.zeros(2**25)
    x[0] = float("inf")
    assert moments(x)[3] == 1 - 2**-25


def test_an_unmasked_score_that_is_not_a_number_counts():
    layer = nn.Softmax(-1)
    model = nn.Sequential(nn.Linear(6, 4), layer)
    x = batch(0, 5, 6)
    x[0, 0] = float("nan")
    with o1.probe(model, quantities="scores") as p:
        model(x)
    assert p.frame["finite"].tolist() == [4 / 5]


def test_scores_of_nothing_and_of_integers():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            torch.softmax(torch.full((2, 2), -float("inf")), -1)
            torch.softmax(torch.arange(3), 0, dtype=torch.float32)
            return y + torch.softmax(y[:0], -1).sum()

    model = Odd()
    assert train(model, adamw(model), quantities="scores").empty


# --- nothing changes ------------------------------------------------------------------------------


class Restless(nn.Module):
    """Everything a pass may change or draw."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.first(x)))
        self.seen += 1
        self.average = 0.9 * self.average + h.detach().mean(0)  # a new tensor
        return self.last(h + np.random.rand())


def state_of_chance() -> list[Any]:
    """Without Python's own random numbers: beartype, which checks types under test, draws them to
    look at some entries."""
    numpys: Any = np.random.get_state()
    return [torch.random.get_rng_state().tolist(), numpys[1].tolist(), numpys[2]]


def history(
    build: Callable[[], nn.Module], loss: Callable[[nn.Module, int], Tensor], **options: Any
) -> list[Any]:
    """Everything that a training leaves, bit by bit; under a probe if `options` are given."""
    model = twins(build)[0]
    np.random.seed(0)
    optimizer, losses = adamw(model), []
    with o1.probe(model, optimizer, **options) if options else nullcontext():
        for step in range(3):
            optimizer.zero_grad()
            value = loss(model, step)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    gradients = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
    state = {name: x.tolist() for name, x in model.state_dict().items()}
    buffers = [(name, x.tolist()) for name, x in model.named_buffers()]
    return [losses, state, gradients, buffers, state_of_chance()]


LOOKS = {
    "default": {"every": 1},
    "batch": {"batch": batch(9, 5, 6)},
    "everything": {"batch": batch(9, 5, 6), "quantities": QUANTITIES},
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_training_is_bit_for_bit_the_same(look):
    assert history(Restless, squares, **LOOKS[look]) == history(Restless, squares)


def test_a_training_of_gpt2_with_dropout_is_bit_for_bit_the_same():
    from transformers import GPT2Config, GPT2LMHeadModel

    config: dict[str, Any] = {
        "vocab_size": 101,
        "n_positions": 32,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "bos_token_id": 1,
    }

    def build() -> nn.Module:
        return GPT2LMHeadModel(
            GPT2Config(**config, eos_token_id=2, attn_pdrop=0.1, resid_pdrop=0.1)
        )

    loss = zoo_loss(ZOO["gpt2"])
    options = {"batch": ZOO["gpt2"].batch(9), "quantities": QUANTITIES}
    assert history(build, loss, **options) == history(build, loss)


def test_a_repeated_pass_draws_the_same_from_all_sources_and_puts_them_back():
    def draw() -> list[float]:
        return [random.random(), np.random.rand(), torch.rand(()).item()]

    model, drawn = Restless(), []
    for seed in range(2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        with repeatable(model):
            drawn.append(draw())
        after = draw()
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert draw()[1:] == after[1:]
        assert after[0] in [
            random.Random(seed).random(),
            *(random.random() for _ in range(9)),
        ]  # beartype draws, too
    assert drawn[0] == drawn[1]


def test_change_is_measured_with_the_same_masks():
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    frame = train(model, optimizer, batch=batch(9, 5, 6))
    assert (frame.loc[frame["quantity"] == "change", "max"] == 0).all()


def test_a_graph_that_is_alive_can_still_be_walked_after_a_pass_on_the_fixed_batch():
    """Untouched buffers are not written into."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8).eval())
    loss = squares(model, 0)
    with o1.probe(model, adamw(model), batch=batch(9, 5, 6)):
        loss.backward()


# --- nothing is left ------------------------------------------------------------------------------


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    kinds = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_state_dict_hooks",
    )
    kinds += (
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called",
    )
    steps = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return sum(
        [len(getattr(module, kind)) for module in model.modules() for kind in kinds]
        + [len(getattr(optimizer, kind)) for kind in steps]
        + [len(p._backward_hooks or ()) for p in model.parameters()]
        + [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]
    )


class Fails(nn.Module):
    """Raises in the forward or the backward pass, when told to."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.layer = nn.Linear(6, 2)
        self.where, self.error = "", RuntimeError

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention(x[None], x[None], x[None], need_weights=False)[0]
        if self.where == "forward":
            raise self.error("forward")
        y = self.layer(h)
        if self.where == "backward":
            y.register_hook(self._fail)
        return y

    def _fail(self, gradient: Tensor) -> None:
        raise self.error("backward")


def run_and_fail(
    model: Fails, optimizer: torch.optim.Optimizer, where: str, kept: list[Any]
) -> Generator[int, None, None]:
    with o1.probe(model, optimizer, quantities=QUANTITIES, batch=batch(9, 5, 6)) as p:
        kept.append(p)
        for step in range(2):
            loss = squares(model, step)
            loss.backward(retain_graph=True)
            optimizer.step()
        model.where = where
        loss = squares(model, 2)
        kept.append(loss)
        yield 0
        loss.backward(retain_graph=True)
        if where == "step":
            optimizer.register_step_pre_hook(lambda *_: model._fail(loss))
        optimizer.step()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["", "forward", "backward", "step", "closed"])
def test_no_hook_is_left(where, error):
    model, kept = Fails(), []
    model.error = error
    functions = dict(vars(functional))
    optimizer = adamw(model)
    run = run_and_fail(model, optimizer, where, kept)
    if where == "closed":
        next(run)
        run.close()
    elif where:
        with pytest.raises(error, match=where if where != "step" else "backward"):
            list(run)
        for hook in [key for key in optimizer._optimizer_step_pre_hooks if where == "step"][
            -1:
        ]:  # the one that failed
            optimizer._optimizer_step_pre_hooks.pop(hook)
    else:
        list(run)
    assert hooks_of(model, optimizer) == 0
    assert all(vars(functional)[name] is function for name, function in functions.items())
    assert torch._dynamo.eval_frame._stance.stance == "default"
    assert torch.overrides._get_current_function_mode_stack() == []
    rows = len(kept[0].rows)
    assert set(kept[0].frame["step"]) >= {0, 1}
    model.where = ""
    if where in ("step", "closed"):
        kept[1].backward()  # through the graph that was kept
    squares(model, 0).backward()
    optimizer.step()
    assert len(kept[0].rows) == rows
    assert len(kept[0]._recorder.ledger) == 0


def test_a_graph_that_is_kept_has_no_hooks_left():
    model = net()
    kept = []
    model[0].register_forward_hook(lambda m, a, y: kept.append(y))
    with o1.probe(model):
        squares(model, 0)
        assert kept[0]._backward_hooks
    assert not kept[0]._backward_hooks


def test_a_failure_to_open_leaves_nothing():
    model = net()
    optimizer = adamw(model)
    with (
        pytest.raises(RuntimeError, match="mat1 and mat2"),
        o1.probe(model, optimizer, batch=batch(0, 5, 7)),
    ):
        pass
    assert hooks_of(model, optimizer) == 0
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.mark.parametrize("optimizer", [adamw, lambda model: None])
def test_activations_do_not_outlive_their_step(optimizer):
    model, seen = net(), []
    made = optimizer(model)
    keep = model[0].register_forward_hook(lambda m, a, y: seen.append(weakref.ref(y)))
    gc.disable()  # reference counts alone must do
    try:
        with o1.probe(model, made, batch=batch(9, 5, 6)):
            for step in range(2):
                squares(model, step).backward()
                if made:
                    made.step()
            assert [ref() for ref in seen] == [None] * len(seen)
            assert len(seen) >= 3
    finally:
        gc.enable()
        keep.remove()


def test_the_probe_can_be_collected_after_the_context():
    model = net()
    loss = squares(model, 0)
    with o1.probe(model, adamw(model)) as p:
        loss = squares(model, 0)
    gone = weakref.ref(p)
    del p
    gc.collect()
    assert gone() is None
    loss.backward()


def test_a_copy_made_inside_is_not_watched():
    model, other = twins(net)
    optimizer = adamw(model)
    with o1.probe(model, optimizer, quantities=QUANTITIES) as p:
        for step in range(2):
            squares(copy.deepcopy(model), 5).backward()
            optimizer.zero_grad()
            squares(model, step).backward()
            optimizer.step()
    pd.testing.assert_frame_equal(p.frame, train(other, adamw(other), quantities=QUANTITIES))


# --- several probes -------------------------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[None], x[None], x[None], need_weights=False)[0]


@pytest.mark.parametrize("build", [net, Attends])
def test_nested_probes_see_the_same(build):
    model, other = twins(build)
    options = {"batch": batch(9, 5, 6), "quantities": QUANTITIES}
    optimizer = adamw(model)
    with o1.probe(model, optimizer, **options) as outer:
        inner = train(model, optimizer, **options)
    alone = train(other, adamw(other), **options)
    if build is Attends:
        assert "scores" in set(alone["quantity"])
    pd.testing.assert_frame_equal(outer.frame, alone)
    pd.testing.assert_frame_equal(inner, alone)


def test_two_models_in_one_training():
    """One feeds the other, one optimizer steps both."""
    one, two = nn.Linear(6, 6), nn.Linear(6, 6)
    alone, pair = twins(lambda: nn.Sequential(one, two))
    optimizer = adamw(pair)
    with o1.probe(pair[0], optimizer) as first, o1.probe(pair[1], optimizer) as second:
        for step in range(2):
            optimizer.zero_grad()
            squares(pair, step).backward()
            optimizer.step()
    wanted = table(train(alone, adamw(alone)))
    for name, p in (("0", first), ("1", second)):
        for (step, module, quantity), found in table(p.frame).items():
            assert found == wanted[step, f"{name}.{module}".strip("."), quantity]


def test_a_model_can_be_watched_again():
    model, other = twins(net)
    optimizer = adamw(model)
    train(model, optimizer)
    again = train(model, optimizer)
    optimizer = adamw(other)
    for step in range(2):
        optimizer.zero_grad()
        squares(other, step).backward()
        optimizer.step()
    pd.testing.assert_frame_equal(again, train(other, optimizer))
    assert set(again["step"]) == {0, 1}


# --- compiled -------------------------------------------------------------------------------------


def counting() -> tuple[Callable[..., Any], list[int]]:
    compiled = []

    def backend(graph: Any, example: Any) -> Any:
        compiled.append(1)
        return graph.forward

    return backend, compiled


@TORCHS_OWN
@pytest.mark.parametrize("way", ["torch.compile", "model.compile", "part"])
@pytest.mark.parametrize("used_before", [True, False])
def test_compiled_models_give_the_same_records_and_stay_compiled(way, used_before):
    torch._dynamo.reset()
    model, plain = twins(Shared)
    backend, compiled = counting()
    watched: Any = model
    if way == "torch.compile":
        watched = torch.compile(model, backend=backend)
    elif way == "model.compile":
        model.compile(backend=backend)
    else:
        model.layer = torch.compile(model.layer, backend=backend)
    if used_before:
        squares(watched, 7).backward()
        assert compiled
    model.zero_grad()
    before = len(compiled)
    frame = train(watched, adamw(watched), batch=batch(9, 5, 6), quantities=QUANTITIES)
    assert len(compiled) == before
    pd.testing.assert_frame_equal(
        frame, train(plain, adamw(plain), batch=batch(9, 5, 6), quantities=QUANTITIES)
    )
    squares(watched, 7).backward()
    assert len(compiled) == before if used_before else compiled


@TORCHS_OWN
def test_compiled_code_goes_on_where_only_tensors_are_recorded():
    torch._dynamo.reset()
    backend, compiled = counting()
    model, plain = twins(Shared)
    watched: Any = torch.compile(model, backend=backend)
    quantities = ["weight", "gradient", "update"]
    frame = train(watched, adamw(watched), quantities=quantities)
    assert len(compiled) == 1
    wanted = table(train(plain, adamw(plain), quantities=quantities))
    assert table(frame).keys() == wanted.keys()
    for key, found in table(frame).items():
        assert found == pytest.approx(wanted[key], rel=1e-4, abs=1e-6)


@TORCHS_OWN
def test_scores_alone_are_seen_in_a_compiled_model():
    torch._dynamo.reset()
    model: Any = torch.compile(Attends(), backend="eager")
    squares(model, 0)
    assert len(train(model, adamw(model), quantities="scores")) == 2


# --- mixed precision, processes -------------------------------------------------------------------


def test_autocast():
    def loss(model: nn.Module, number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squares(model, number)

    seen = []
    frame = compare(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), loss)
    model = nn.Linear(6, 8)
    model.register_forward_hook(lambda m, a, y: seen.append(y.dtype))
    loss(model, 0)
    assert seen == [torch.bfloat16]
    assert (frame["finite"] == 1).all()


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler(fused):
    """Weights' gradients are what the optimizer reads; those of outputs carry the scale."""
    model, plain = twins(net)
    scale = 2.0**10
    optimizer, scaler = (
        torch.optim.AdamW(model.parameters(), 1e-2, fused=fused),
        torch.amp.GradScaler("cpu", scale),
    )
    with o1.probe(model, optimizer) as p:
        for step in range(2):
            optimizer.zero_grad()
            scaler.scale(squares(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
    wanted = table(train(plain, torch.optim.AdamW(plain.parameters(), 1e-2, fused=fused)))
    assert table(p.frame).keys() == wanted.keys()
    for (step, module, quantity), found in table(p.frame).items():
        by = [scale] * 3 + [1] if quantity == "output gradient" else [1] * 4
        expected = [x * y for x, y in zip(wanted[step, module, quantity], by, strict=True)]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6 * by[0]), (
            step,
            module,
            quantity,
        )


@pytest.fixture(scope="module")
def processes(tmp_path_factory) -> list[dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("processes"))
    spawn(process, args=(folder,), nprocs=PROCESSES)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(PROCESSES)]


def rows_of(
    processes: list[dict[str, Any]], job: str, rank: int
) -> dict[tuple[int, str, str], list[float]]:
    result = processes[rank][job]
    assert not isinstance(result, str), result
    return table(pd.DataFrame(result["rows"]))


def alone(
    rank: int, weights: dict[str, Tensor] | None = None
) -> dict[tuple[int, str, str], list[float]]:
    """The first step of one process."""
    model = net()
    with o1.probe(model) as p:
        model(inputs(0, rank)).square().mean().backward()
    return table(p.frame)


@pytest.mark.parametrize("rank", range(PROCESSES))
def test_every_process_of_a_distributed_training_records_its_own(rank, processes):
    found = rows_of(processes, "replicated", rank)
    assert {name for _, name, _ in found} == {"", *"0123", *dict(net().named_parameters())}
    assert {step for step, _, _ in found} == set(range(STEPS + 1))
    for key, wanted in alone(rank).items():
        if key[2] != "gradient":
            assert found[key] == pytest.approx(wanted, rel=1e-5, abs=1e-7), key


def test_gradients_of_a_distributed_training_are_the_averages(processes):
    models: list[Any] = [net() for _ in range(PROCESSES)]
    for rank, model in enumerate(models):
        model(inputs(0, rank)).square().mean().backward()
    for (name, one), two in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        average = (one.grad + two.grad) / 2
        for rank in range(PROCESSES):
            found = rows_of(processes, "replicated", rank)
            assert found[0, name, "gradient"] == pytest.approx(sizes(average), rel=1e-4, abs=1e-7)
            assert found[0, name, "update"] == pytest.approx(
                sizes(-0.1 * average), rel=1e-4, abs=1e-7
            )


def test_one_process_may_record_alone(processes):
    assert rows_of(processes, "recorded by one", 0) == rows_of(processes, "replicated", 0)


def test_of_sharded_tensors_every_process_records_its_part(processes):
    plain = rows_of(processes, "replicated", 0)
    parts = [rows_of(processes, "sharded", rank) for rank in range(PROCESSES)]
    for key, wanted in plain.items():
        if key[2] not in ("weight", "gradient", "update") and key[0] == 0:
            assert parts[0][key] == pytest.approx(wanted, rel=1e-4, abs=1e-6), key
    for name, p in net().named_parameters():
        for rank, part in enumerate(p.detach().chunk(PROCESSES)):
            assert parts[rank][0, name, "weight"] == pytest.approx(sizes(part), rel=1e-5)
        if len(p) % PROCESSES == 0:
            for quantity in ("gradient", "update"):
                both = [parts[rank][0, name, quantity] for rank in range(PROCESSES)]
                whole = plain[0, name, quantity]
                assert np.sqrt(np.mean([x[0] ** 2 for x in both])) == pytest.approx(
                    whole[0], rel=1e-4, abs=1e-7
                )
                assert max(x[2] for x in both) == pytest.approx(whole[2], rel=1e-4, abs=1e-7)


# --- optimizers -----------------------------------------------------------------------------------


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return o1.plan(model, base=ZOO["mlp"].build(32), optimizer="muon", lr=1e-2).optimizer()


def lion(model: nn.Module) -> torch.optim.Optimizer:
    return o1.plan(model, base=ZOO["mlp"].build(32), optimizer="lion", lr=1e-3).optimizer()


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov, which writes into gradients": lambda m: torch.optim.SGD(
        m.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "adamw fused": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, fused=True),
    "adamw foreach": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, foreach=True),
    "muon": muon,
    "lion": lion,
    "some parameters": lambda m: torch.optim.Adam(list(m.parameters())[2:4], 1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    frame = compare(
        lambda: ZOO["mlp"].build(32), zoo_loss(ZOO["mlp"]), OPTIMIZERS[name], steps=3, rel=1e-4
    )
    still = frame[(frame["quantity"] == "update") & (frame["rms"] == 0)]["module"]
    assert (
        set(still)
        == {
            "net.0.weight",
            "net.0.bias",
            "net.4.weight",
            "net.4.bias",
            "net.6.weight",
            "net.6.bias",
        }
    ) == (name == "some parameters")


def test_a_closure_is_called_within_the_step():
    model, other = twins(lambda: nn.Linear(6, 3))
    calls = []
    optimizers = [torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3) for m in (model, other)]

    def closure(m: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = squares(m, 0)
        loss.backward()
        return loss

    with o1.probe(model, optimizers[0]) as p:
        for _ in range(2):
            optimizers[0].step(lambda: closure(model, optimizers[0]))
    found = table(p.frame)
    assert len(calls) > 2
    for step in range(2):
        before, passed = {name: x.detach().clone() for name, x in other.named_parameters()}, []
        hook = other.register_forward_hook(
            lambda m, a, y, passed=passed: passed.append(y.detach().clone())
        )
        optimizers[1].step(lambda: closure(other, optimizers[1]))
        hook.remove()
        assert found[step, "", "output"] == pytest.approx(sizes(*passed), rel=1e-5, abs=1e-6)
        for name, parameter in other.named_parameters():
            assert found[step, name, "weight"] == pytest.approx(
                sizes(before[name]), rel=1e-5, abs=1e-7
            )
            assert found[step, name, "gradient"] == pytest.approx(
                sizes(parameter.grad), rel=1e-5, abs=1e-7
            )
            update = parameter.detach() - before[name]
            assert found[step, name, "update"] == pytest.approx(sizes(update), rel=1e-4, abs=1e-7)


# --- decay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e-1, 1e-3, 1e-4])
def test_decay_is_measured_however_weak(rate):
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    before = copy.deepcopy(model.state_dict())
    found = decay_of(model, optimizer).fractions
    assert set(found) == {"weight", "bias"}
    assert [m.rms for m in found.values()] == pytest.approx([0.01 * rate] * 2, rel=1e-3)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not optimizer.state


def test_a_penalty_is_no_decay():
    model = nn.Linear(30, CLASSES)
    found = decay_of(model, torch.optim.Adam(model.parameters(), 1e-2, weight_decay=0.1))
    assert found.fractions == {}
    sizes = {
        name: 0.1 * float(p.detach().square().mean().sqrt()) for name, p in model.named_parameters()
    }
    assert found.penalties == pytest.approx(sizes)
    assert (
        decay_of(model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)).fractions
        == {}
    )
