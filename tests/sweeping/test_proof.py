"""A stack proves itself: models that no list of attributes covers train as alone, or are named."""

import functools
import itertools
import re
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.more_odd_models import MORE
from support.odd_models import CLASSES, DRAWING, INPUTS, NAMED_MODELS, ODD_MODELS, SAMPLE
from torch import nn
from torch._C._functorch import is_batchedtensor
from torch.utils.checkpoint import checkpoint

import orderone as o1
from orderone.core.errors import code_of
from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import run_alone
from orderone.sweeping.stacked import NotStackable
from orderone.sweeping.stacked.verify import _Verification, read_first, verify
from orderone.training.source import Source
from orderone.training.stacked.other_kernels import OtherKernels
from orderone.training.stacked.proof import Difference, Differences, Place
from orderone.training.stacked.ways import nudged

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ODD_MODELS if name not in SAMPLE]


def batch(step, seed):
    generator = torch.Generator().manual_seed(100 * seed + step)
    x = torch.randn(7, INPUTS, generator=generator)
    return x, x[:, :CLASSES].argmax(1)


def job_of(build, **options):
    given: dict[str, Any] = {"steps": 5, "precision": "float64", "evaluate_every": 2}
    given |= {"base_sizes": {"width": 4}, "name": "odd"}
    source = Source("numbers", batch, lambda: [batch(99, 9)])
    return Job(build, source, **(given | options))


def trials_of(job, optimizer="adamw"):
    points = [(1e-2, 0), (3e-2, 1), (1e-2, 2)]
    return [
        job.trial({"width": 8, "optimizer": optimizer, "rule": "mup", "lr": lr, "seed": seed})
        for lr, seed in points
    ]


def both(build, **options):
    """Return the outcomes of an engine and of stand-alone runs, in the same order."""
    job = job_of(build, **options)
    trials = trials_of(job)
    found = sorted(Engine(job).run(trials), key=lambda outcome: outcome.key)
    wanted = sorted(run_alone(job_of(build, **options), trials), key=lambda outcome: outcome.key)
    return found, wanted


@pytest.mark.parametrize("name", [*SAMPLE, *SLOW])
def test_odd_models_are_trained_as_alone_or_named(name):
    found, wanted = both(ODD_MODELS[name])
    for outcome, expected in zip(found, wanted, strict=True):
        assert outcome.error is None
        np.testing.assert_allclose(outcome.losses, expected.losses, rtol=1e-9)
        np.testing.assert_allclose(outcome.evaluation, expected.evaluation, rtol=1e-9)
        if outcome.facts["engine"] == "stacked":
            verified = outcome.facts["verified"]
            assert isinstance(verified, Mapping)
            assert verified["how"]
        else:
            assert code_of(str(outcome.facts["not stacked"]))


# "error": they cannot be planned; the others are not repeatable alone
NOT_TRAINED = ("layer made in the first pass", "two parametrizations")
NOT_REPEATABLE = (
    "counter of the class",
    "function that counts",
    "time of day",
    "layer shared between models",
)
MORE_SAMPLE = (
    "random choice of Python",
    "private number from the third step",
    "counter in a closure",
    "history in a deque",
    "queue of keys",
    "numpy generator of the model",
)
MORE_SLOW = [
    pytest.param(name, every, marks=pytest.mark.slow)
    for name in MORE
    for every in (None, 2)
    if name not in (*NOT_TRAINED, *NOT_REPEATABLE)
]


@pytest.mark.parametrize(("name", "every"), [*[(name, None) for name in MORE_SAMPLE], *MORE_SLOW])
def test_further_odd_models_are_trained_as_alone_or_named(name, every):
    found, wanted = both(MORE[name], evaluate_every=every)
    for outcome, expected in zip(found, wanted, strict=True):
        assert outcome.error is None
        np.testing.assert_allclose(outcome.losses, expected.losses, rtol=1e-9)
        np.testing.assert_allclose(outcome.evaluation, expected.evaluation, rtol=1e-9)
        if outcome.facts["engine"] != "stacked":
            assert code_of(str(outcome.facts["not stacked"]))


@pytest.mark.parametrize("name", NOT_REPEATABLE)
def test_models_that_are_not_repeatable_are_named(name):
    job = job_of(MORE[name])
    found = list(Engine(job).run(trials_of(job)))
    codes = {code_of(str(outcome.facts["not stacked"])) for outcome in found}
    assert codes <= {"not-repeatable", "stack-deviates"}


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
def test_what_acts_after_the_first_steps_is_found_in_the_last_one(precision):
    build = MORE["private number from the third step"]
    job = job_of(build, evaluate_every=None, precision=precision)
    with pytest.raises(NotStackable) as caught:
        list(Engine(job, stacked=True).run(trials_of(job)))
    assert caught.value.code == "stack-deviates"
    step = re.search(r"step (\d+)", str(caught.value))
    assert step is not None
    assert int(step[1]) == 4  # the last one; the first two agreed


@pytest.mark.parametrize(
    ("name", "last"), [("history in a deque", "agrees"), ("count of an iterator", "unclear")]
)
def test_the_last_step_is_taken_alone_too(name, last):
    found = o1.sweep(
        MORE[name],
        {"lr": [1e-3, 1e-2], "seed": [0, 1]},
        widths=[8],
        base=4,
        data=batch,
        steps=6,
        progress=False,
    )
    [proof] = found.verified
    assert proof.last == last
    assert [code_of(note) for note in found.notes] == ["last-step-unclear"] * (last == "unclear")


@pytest.mark.parametrize("name", NAMED_MODELS)
def test_models_that_no_stack_can_follow_are_named(name):
    build, code = NAMED_MODELS[name]
    job = job_of(build)
    with pytest.raises(NotStackable) as caught:
        verify(job, trials_of(job))
    assert caught.value.code == code


ON_GPU = [
    pytest.param(
        name,
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    )
    for name in ("dropout", "noise", "alpha dropout")
]


@pytest.mark.parametrize(("name", "device"), [*[(name, "cpu") for name in DRAWING], *ON_GPU])
def test_random_draws_are_repeated_for_the_proof(name, device):
    job = job_of(DRAWING[name], device=device)
    proof, _ = verify(job, trials_of(job))
    assert proof.how
    assert proof.draws
    assert proof.gradient < 1e-12


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tensor captured deeply", "hook on an activation", "weight norm"])
def test_other_precisions(name, precision):
    found, wanted = both(ODD_MODELS[name], precision=precision)
    stacked = found[0].facts["engine"] == "stacked"
    assert stacked == (name == "weight norm")
    for outcome, expected in zip(found, wanted, strict=True):
        rtol = 1e-5 if precision == "float32" else 2e-2
        np.testing.assert_allclose(outcome.losses, expected.losses, rtol=rtol)


class Recomputed(nn.Module):
    """Convolutions with batch norm, and a layer that is computed again in the backward pass."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv1d(1, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, padding="same", bias=False, groups=2)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x):
        h = self.norm(self.second(self.first(x[:, None]).relu())).relu().mean(-1)
        return self.last(checkpoint(self.middle, h, use_reentrant=False).relu())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_of_convolutions_and_recomputed_layers(precision):
    found, wanted = both(Recomputed, precision=precision)
    for outcome, expected in zip(found, wanted, strict=True):
        assert outcome.facts["engine"] == "stacked"
        np.testing.assert_allclose(outcome.losses, expected.losses, rtol=2e-2)


def test_other_kernels_compute_the_same_numbers():
    torch.manual_seed(0)
    layers = [
        (nn.Linear(4, 6), (3, 4)),
        (nn.Conv1d(4, 6, 3, stride=2, groups=2), (2, 4, 9)),
        (nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular"), (2, 4, 5, 5)),
        (nn.Conv2d(4, 6, 2, dilation=2, bias=False), (4, 5, 5)),
        (nn.Conv3d(2, 2, 2, padding=1), (1, 2, 3, 3, 3)),
    ]
    for layer, shape in layers:
        layer.double()
        x = torch.randn(shape, dtype=torch.float64)
        with OtherKernels():
            other = layer(x)
        assert torch.allclose(other, layer(x), rtol=1e-12, atol=1e-12)


def test_sums_that_cancel_are_rounding_in_double_precision(monkeypatch):
    """The gradient of a trained temperature differs by 135 units, which is 3e-14 of its size."""
    job = job_of(ODD_MODELS["weight norm"], precision="bfloat16")
    place = Place(0, "gradient", "temperature")

    def left(relative: float) -> list[Difference] | None:
        difference = Difference(place, units=135.0, relative=relative, overall=135.0 * 1e6)
        monkeypatch.setattr(_Verification, "_beyond_nudges", lambda *_: [difference])
        monkeypatch.setattr(Differences, "beyond", lambda *_: [difference])
        trials = trials_of(job)
        return _Verification(job, read_first(job, trials, 1))._left_in("float64")

    assert left(3e-14) == []
    assert left(1e-6) != []


class Slipping(nn.Module):
    """Three layers; the second multiplies by a number that no attribute shows."""

    def __init__(self, width):
        super().__init__()
        number = float(torch.randn(()))
        self.one, self.three = nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)
        self.two = type("Scaled", (nn.Linear,), {"forward": _scaled(number)})(width, width)
        type(self.two).__module__ = "odd"

    def forward(self, x):
        return self.three(self.two(self.one(x).relu()))


def _scaled(number):
    return lambda self, x: number * nn.Linear.forward(self, x)


def test_the_first_module_that_deviates_is_named():
    job = job_of(Slipping)
    with pytest.raises(NotStackable) as caught:
        verify(job, trials_of(job))
    assert caught.value.code == "stack-deviates"
    assert "the output of two (Scaled) is the first that differs" in str(caught.value)


class OtherUpdate(torch.optim.SGD):
    """Class whose stacked form makes another update."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = 1.5 * float(group["lr"])
        super().step()


def test_another_update_is_named():
    from support.registered import forgotten

    from orderone.optimizers.sgd import SGDUpdate

    with forgotten():
        o1.optimizers.register(OtherUpdate, law="sgd", stacked=SGDUpdate)
        job = job_of(ODD_MODELS["PReLU"], optimizers={"otherupdate": OtherUpdate})
        with pytest.raises(NotStackable) as caught:
            verify(job, trials_of(job, "otherupdate"))
    assert "update of the optimizer" in str(caught.value)


# --- nothing is left behind -----------------------------------------------------------------------


def _state_of_numpy() -> np.ndarray:
    return cast(tuple[Any, ...], np.random.get_state())[1]


def test_generators_are_as_if_nothing_had_happened():
    job = job_of(DRAWING["dropout"])
    # not Python's: the type checks of the tests draw from it
    before = torch.get_rng_state(), _state_of_numpy().copy()
    verify(job, trials_of(job))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(_state_of_numpy(), before[1])


@pytest.mark.parametrize("name", ["dropout", "noise"])
def test_a_proof_changes_no_loss(name):
    outcomes = []
    for proved in (True, False):
        job = job_of(DRAWING[name], verify=proved)
        outcomes.append(sorted(Engine(job).run(trials_of(job)), key=lambda outcome: outcome.key))
    for a, b in zip(*outcomes, strict=True):
        assert np.array_equal(a.losses, b.losses)
        assert a.evaluation == b.evaluation


def test_data_that_cannot_be_read_twice_is_named():
    def fresh(step, seed):
        x = torch.randn(7, INPUTS)
        return x, x[:, :CLASSES].argmax(1)

    job = Job(ODD_MODELS["PReLU"], Source("fresh", fresh), steps=3, base_sizes={"width": 4})
    with pytest.raises(NotStackable) as caught:
        verify(job, trials_of(job))
    assert caught.value.code == "data-not-repeatable"


def test_data_may_reuse_its_tensors():
    buffer = torch.zeros(7, INPUTS)

    def reused(step, seed):
        x, y = batch(step, 0)
        return buffer.copy_(x), y

    job = Job(ODD_MODELS["PReLU"], Source("reused", reused), steps=4, base_sizes={"width": 4})
    found = list(Engine(job).run(trials_of(job)))
    assert {outcome.facts["engine"] for outcome in found} == {"stacked"}


# --- sweeps ---------------------------------------------------------------------------------------


def sweep(build, **options):
    given = {"widths": [8], "base": 4, "data": batch, "steps": 3, "progress": False}
    return o1.sweep(build, {"lr": [1e-3, 1e-2], "seed": [0, 1]}, **(given | options))


def test_a_sweep_says_how_its_stacks_were_proved(tmp_path):
    found = sweep(ODD_MODELS["weight norm"], store=tmp_path / "runs.db", name="odd")
    [proof] = found.verified
    assert proof
    assert len(proof.trials) == 4
    assert len(set(proof.pair)) == 2
    assert proof.loss < 1e-5
    assert "4 trials" in str(proof)
    assert o1.Sweep.load(tmp_path / "runs.db").verified == found.verified


def test_experts_can_leave_the_proof_out():
    [proof] = sweep(ODD_MODELS["weight norm"], verify=False).verified
    assert not proof
    captured = sweep(ODD_MODELS["class attribute"], verify=False, device="cpu")
    assert not captured.notes  # nobody notices
    [note] = sweep(ODD_MODELS["class attribute"], device="cpu").notes
    assert code_of(note) == "stack-deviates"


# --- seeds of the pair ----------------------------------------------------------------------------


def points(job, *pairs):
    common = {"width": 8, "optimizer": "adamw", "rule": "mup"}
    return [job.trial({**common, "lr": lr, "seed": seed}) for lr, seed in pairs]


def test_a_stack_of_one_seed_may_draw_from_numpy():
    build, code = NAMED_MODELS["draws of numpy"]
    assert code == "draws-outside-torch"
    job = job_of(build)
    trials = points(job, (1e-2, 5), (3e-2, 5))
    found = {outcome.key: outcome for outcome in Engine(job).run(trials)}
    for expected in run_alone(job_of(build), trials):
        assert found[expected.key].facts["engine"] == "stacked"
        np.testing.assert_allclose(found[expected.key].losses, expected.losses, rtol=1e-9)


def test_the_pair_has_different_seeds_where_there_are_some():
    job = job_of(ODD_MODELS["class attribute"])
    common = {"width": 8, "optimizer": "adamw", "rule": "mup"}
    trials = [
        job.trial({**common, "lr": 1e-2, "weight_decay": 0.1, "seed": 0}),
        job.trial({**common, "lr": 1e-2, "weight_decay": 0.1, "seed": 1}),
        job.trial({**common, "lr": 3e-2, "weight_decay": 0.2, "seed": 0}),
    ]
    with pytest.raises(NotStackable) as caught:
        verify(job, trials)
    assert caught.value.code == "stack-deviates"


class InPlace(nn.Module):
    """Writes into its inputs, and counts its calls where no attribute shows it."""

    def __init__(self, width):
        super().__init__()
        self.first, self.head = nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)
        self.scales = itertools.cycle([1.0, 0.5, 0.25])

    def forward(self, x):
        x.mul_(0.5)
        scale = next(self.scales) if self.training else 1.0
        return self.head(torch.tanh(scale * self.first(x)))


def test_a_comparison_of_speed_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr("orderone.sweeping.stacked.comparison.WORTH_MEASURING", 1)
    monkeypatch.setattr("orderone.sweeping.stacked.comparison.MARGIN", 1e9)
    found, wanted = both(InPlace)
    for outcome, expected in zip(found, wanted, strict=True):
        assert outcome.facts["engine"] == "stacked"
        np.testing.assert_allclose(outcome.losses, expected.losses, rtol=1e-9)


class Frozen(nn.Module):
    """Model with a norm that its user has frozen by `eval()`, and dropout that is off, too."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.norm = nn.BatchNorm1d(width).eval()
        self.drop = nn.Dropout(0.5).eval()
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.first(x))).relu())


@pytest.mark.parametrize("stacked", [False, True])
def test_what_is_frozen_stays_frozen_after_an_evaluation(stacked):
    losses = []
    for every in (None, 1):
        job = job_of(Frozen, evaluate_every=every)
        found = sorted(Engine(job, None, stacked).run(trials_of(job)), key=lambda o: o.key)
        losses.append([outcome.losses.tolist() for outcome in found])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["hook on a parameter", "backward hook", "backward pre-hook"])
def test_hooks_on_gradients_are_the_reason(name):
    job = job_of(ODD_MODELS[name])
    with pytest.raises(NotStackable) as caught:
        list(Engine(job, None, True).run(trials_of(job)))
    assert caught.value.code == "gradient-hooks"


class SlightlyOtherInAStack(nn.Module):
    """Computes 1e-8 of its size otherwise in a stack, then casts to float32 or not."""

    def __init__(self, width, cast):
        super().__init__()
        self.one, self.two = nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)
        self.cast = cast

    def forward(self, x):
        x = self.one(x)
        if is_batchedtensor(x):
            x = x * (1 + 1e-8)
        if self.cast:
            x = x.to(torch.float32).to(torch.float64)
        return self.two(x.tanh())


def test_a_cast_to_float32_inside_a_model_has_units_of_float32():
    """A number near the middle of two neighbours of float32 is rounded to either of them."""
    job = job_of(lambda width: SlightlyOtherInAStack(width, cast=True))
    assert verify(job, trials_of(job))[0].how
    job = job_of(lambda width: SlightlyOtherInAStack(width, cast=False))
    with pytest.raises(NotStackable) as caught:
        verify(job, trials_of(job))
    assert caught.value.code == "stack-deviates"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_nudge_changes_every_entry_by_one_unit(dtype):
    """In double precision nothing was nudged, and stacks of ill-conditioned models were refused."""
    x = torch.linspace(1, 2, 50, dtype=dtype)
    eps = torch.finfo(dtype).eps
    apart = (nudged(x, torch.Generator().manual_seed(0), eps).double() / x.double() - 1).abs()
    assert bool((apart > 0).all())
    assert bool((apart <= 2 * eps).all())


class TwiceNormalized(nn.Module):
    """The second norm reads numbers whose mean is zero but for rounding, as in EfficientNet.

    A stack adds them in another order.
    """

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.Linear(INPUTS, width), nn.Linear(width, width, bias=False)
        self.norm, self.again = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, weight = self.norm(self.first(x)), self.second.weight
        if is_batchedtensor(weight):
            x, weight = x.flip(-1), weight.flip(-1)
        return self.head(self.again(nn.functional.linear(x, weight)).relu())


def test_means_that_are_zero_but_for_rounding_stay_rounding_in_double_precision():
    found, wanted = both(TwiceNormalized)
    for one, other in zip(found, wanted, strict=True):
        assert one.facts["engine"] == "stacked", one.facts
        assert np.allclose(one.losses, other.losses, rtol=1e-9)


class Exchanging(nn.Module):
    """Model that changes its list of layers in its seventh pass of training."""

    def __init__(self, width, change):
        super().__init__()
        self.up, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.passes = 0
        self.change = change

    def forward(self, x):
        if self.training:
            self.passes += 1
            if self.passes == 7:
                self.layers = nn.ModuleList(self.change(list(self.layers)))
        h = self.up(x)
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return self.head(h)


@pytest.mark.parametrize(
    "change", [lambda layers: layers[::-1], lambda layers: layers[:2]], ids=["order", "number"]
)
def test_layers_that_are_exchanged_late_are_named(change):
    job = job_of(lambda width: Exchanging(width, change), steps=12)
    trials = trials_of(job)
    with pytest.raises(NotStackable) as caught:
        list(Engine(job, stacked=True).run(trials))
    assert caught.value.code == "stack-deviates"
    assert "layers." in str(caught.value)


class Replacing(nn.Module):
    """Model that calls `change` in its seventh pass of training."""

    def __init__(self, width, change):
        super().__init__()
        self.up, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.passes = 0
        self.change = change

    def forward(self, x):
        if self.training:
            self.passes += 1
            if self.passes == 7:
                self.change(self.head)
        return self.head(torch.tanh(self.up(x)))


def halve_bias(layer):
    layer.bias = nn.Parameter(layer.bias.detach() / 2)


def remove_bias(layer):
    layer.bias = None


def delete_bias(layer):
    del layer.bias
    layer.register_parameter("bias", None)


@pytest.mark.parametrize("change", [halve_bias, remove_bias, delete_bias])
def test_parameters_that_a_pass_exchanges_late_are_named(change):
    """A pass gets the tensors of the stack by name, so the next pass would take the old one."""
    build = functools.partial(Replacing, change=change)
    job = job_of(build, steps=12)
    with pytest.raises(NotStackable) as caught:
        list(Engine(job, stacked=True).run(trials_of(job)))
    assert caught.value.code == "stack-deviates"
    assert "head.bias" in str(caught.value)


class Tied(Replacing):
    """Model whose two inner layers share a weight, until `change` gets the second layer."""

    def __init__(self, width, change):
        super().__init__(width, lambda head: change(self.second))
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x):
        return super().forward(x) + self.head(self.second(torch.tanh(self.first(self.up(x)))))


def end_tie(layer):
    layer.weight = nn.Parameter(layer.weight.detach().clone())


@pytest.mark.parametrize("late", [False, True])
def test_ties_that_a_pass_ends_late_are_named(late):
    """The weight of the second layer has another name than the one that the stack knows."""
    build = functools.partial(Tied, change=end_tie if late else lambda layer: None)
    job = job_of(build, steps=12)
    if not late:
        outcomes = list(Engine(job, stacked=True).run(trials_of(job)))
        assert {outcome.facts["engine"] for outcome in outcomes} == {"stacked"}
        return
    with pytest.raises(NotStackable) as caught:
        list(Engine(job, stacked=True).run(trials_of(job)))
    assert caught.value.code == "stack-deviates"
    assert "second.weight" in str(caught.value)


def test_a_module_that_has_two_names_is_stacked():
    """Its tensors are given to it once: torch could not put them back otherwise."""

    def build(width):
        model = nn.Sequential(nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3))
        model.append(model[2])
        model.insert(2, model[1])
        return nn.Sequential(*list(model)[:-1])

    job = job_of(build, steps=6)
    outcomes = list(Engine(job, stacked=True).run(trials_of(job)))
    assert {outcome.facts["engine"] for outcome in outcomes} == {"stacked"}


class Rescaling(nn.Module):
    """Model whose buffer is replaced by another kind of tensor from the seventh pass on."""

    def __init__(self, width, change):
        super().__init__()
        self.up, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.register_buffer("scale", torch.ones(width, dtype=torch.long))
        self.passes = 0
        self.change = change

    def forward(self, x):
        if self.training:
            self.passes += 1
            if self.passes == 7:
                self.scale = self.change(self.scale)
        total = 1 if self.scale is None else self.scale.sum()
        return self.head(torch.tanh(self.up(x))) / total


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda scale: scale.sum(), "by whole numbers of shape ()"),
        (lambda scale: torch.cat([scale, scale]), "by whole numbers of shape (16,)"),
        (lambda scale: scale * 0.3, "by real numbers of shape (8,)"),
        (lambda scale: None, "in the place of scale, or removes it"),
        (lambda scale: scale + 1, None),
    ],
)
def test_buffers_that_a_pass_replaces_late_by_others_are_named(change, named):
    """A copy into the buffer of the stack would repeat a scalar, or round to whole numbers."""
    job = job_of(functools.partial(Rescaling, change=change), steps=12)
    run = Engine(job, stacked=True).run
    if named is None:
        assert all(outcome.finished for outcome in run(trials_of(job)))
        return
    with pytest.raises(NotStackable) as caught:
        list(run(trials_of(job)))
    assert caught.value.code == "stack-deviates"
    assert named in str(caught.value)
