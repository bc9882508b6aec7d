"""The coordinate check: it passes healthy models, names faults, and keeps finished runs when
something fails."""

import json
import math
from functools import cache

import pytest
import torch
from support.check_subjects import (
    FAULTY,
    HEALTHY,
    LR,
    NUMBERS,
    TOKENS,
    WIDTHS,
    Heads,
    Net,
    Subject,
    of_zoo,
)
from support.errors import refuses
from torch import nn
from torch.nn import functional

import orderone as o1
from orderone.core.errors import code_of, without_code
from orderone.measure.check import COLUMNS

VERDICTS = {"PASS", "FAIL", "SHRINKS", "UNCLEAR"}
SMALL = (32, 64, 128)
# Half of the usual widths suffice for these and take a quarter of the time.
HALVED = ("gpt2 (tied)", "llama", "vit")


@cache
def healthy(name: str) -> o1.measure.Check:
    """Check a healthy model once for all tests. Two seeds: fewer make a PASS harder, not easier."""
    widths = (32, 64, 128, 256) if name in HALVED else WIDTHS
    return HEALTHY[name].check(widths=widths, seeds=2)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_passes(name):
    check = healthy(name)
    assert check.passed, str(check)
    assert check.verdict == "PASS"
    assert not check.causes


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_model_fails_with_the_right_cause(name):
    subject = FAULTY[name]
    check = subject.check(seeds=2)
    assert check.verdict == "FAIL", str(check)
    assert not check.passed
    matching = [cause for cause in check.causes if code_of(cause) == subject.code]
    assert any(subject.words in cause for cause in matching), check.causes
    failed = check.exponents[check.exponents.verdict == "FAIL"]
    assert all(failed.cause != "")


@pytest.fixture(scope="module")
def check():
    return Subject(Net).check(widths=SMALL, seeds=2, steps=3)


def test_the_result_is_a_tidy_table_with_provenance(check):
    assert list(check.frame.columns) == [
        "width",
        "seed",
        "step",
        "module",
        "quantity",
        "rms",
        "mean",
        "max",
        "finite",
    ]
    assert set(check.frame.width) == set(SMALL)
    assert set(check.frame.seed) == {0, 1}
    assert set(check.frame.step) == {0, 1, 2, 3}
    assert set(COLUMNS) <= set(check.exponents.columns)
    assert set(check.exponents.verdict) <= VERDICTS
    assert check.frame.attrs["provenance"]["torch"] == torch.__version__
    assert len(check.frame.attrs["provenance"]["plan"]) == 16
    assert check.frame.attrs["units"]["rms"]
    assert not check.frame.duplicated(["width", "seed", "step", "module", "quantity"]).any()
    assert len(check.losses) == len(SMALL) * 2 * 3


def test_the_exponents_are_those_of_the_records(check):
    """An independent fit of one line."""
    import numpy as np

    line = check.exponents.query("module == 'hid.weight' and quantity == 'update'").iloc[0]
    rows = check.frame.query("module == 'hid.weight' and quantity == 'update' and step == 0")
    slope = np.polyfit(np.log(rows.width), np.log(rows.rms), 1)[0]
    assert line.exponent == pytest.approx(slope, abs=1e-9)
    assert line.low < line.exponent < line.high
    assert line.predicted == pytest.approx(-1, abs=0.02)


def test_recorded_changes_are_those_of_a_plain_loop():
    """The same training without a probe, by hand."""
    check = Subject(Net).check(widths=SMALL, seeds=[7], steps=2)
    torch.manual_seed(7)
    model = Net(128)
    plan = o1.plan(model, base=_seeded(32, 7), lr=LR, inputs=NUMBERS[0])
    plan.apply()
    optimizer = plan.optimizer(fused=True)
    first = model.hid(torch.relu(model.inp(NUMBERS[0]))).detach()
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(NUMBERS[0]), NUMBERS[1]).backward()
        optimizer.step()
    change = model.hid(torch.relu(model.inp(NUMBERS[0]))).detach() - first
    found = check.frame.query(
        "width == 128 and module == 'hid' and quantity == 'change' and step == 2"
    ).rms.item()
    assert found == pytest.approx(
        change.square().mean().sqrt().item(), rel=0.05
    )  # bases differ in their random draw


def _seeded(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Net(width)


@pytest.mark.parametrize(
    ("depth", "largest", "verdict"),
    [(None, 8, "FAIL"), ("sqrt", 16, "PASS"), ("completep", 8, "PASS")],
)
def test_depth(depth, largest, verdict):
    entry = of_zoo("llama")
    check = o1.coord_check(
        lambda layers: entry.build(32, layers=layers),
        depths=[size for size in (2, 4, 8, 16) if size <= largest],
        depth=depth,
        lr=LR,
        batches=entry.batch,
        loss=entry.options["loss"],
        seeds=2,
    )
    assert check.verdict == verdict, str(check)
    assert check.axis == "depth"
    assert "depth" in check.frame.columns
    if depth is None:
        assert code_of(check.causes[0]) == "unscaled-branches"


def test_shrinking_changes_have_a_verdict_with_the_measured_alignment():
    check = healthy("vit")
    shrinking = check.exponents[check.exponents.verdict == "SHRINKS"]
    assert len(shrinking)
    assert all(shrinking.cause.str.startswith("shrinks"))
    assert all(shrinking.cause.str.contains("alpha"))
    assert check.alignment is not None
    assert check.passed


def test_a_tied_readout_is_predicted_in_its_gauge():
    """The gain of the last norm contains the multiplier of the readout, and decreases."""
    check = healthy("gpt2 (tied)")
    line = check.exponents.query(
        "module == 'transformer.ln_f' and quantity == 'output' and step == 0"
    ).iloc[0]
    assert line.predicted == pytest.approx(-1)
    assert line.verdict == "PASS"


# --- when something is missing or breaks ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": [64]}, r"widths: .*at least two.* \[64\]"),
        ({"widths": []}, r"widths: .*at least two.* \[\]"),
        ({"widths": 64}, "widths: .*several sizes.* 64"),
        ({"widths": [64, 0]}, "widths: .* 0"),
        ({"widths": [64, 128], "depths": [2, 4]}, "widths=.* depths="),
        ({"widths": None}, "widths=.* depths="),
        ({"batches": None}, "batches: "),
        ({"batches": []}, "batches: .*empty list"),
        ({"batches": [NUMBERS, NUMBERS]}, "batches: .*4 steps, got 2"),
        ({"batches": iter(())}, "batches: "),
        ({"steps": 0}, "steps: .* 0"),
        ({"seeds": 0}, "seeds: .* 0"),
        ({"seeds": []}, "seeds: .*empty"),
        ({"rule": "nup"}, "rule.*'mup'"),
        ({"optimizer": "adamm"}, "optimizer.*'adamm'"),
        ({"lr": -1}, "lr: .* -1"),
        ({"confidence": 1.5}, "confidence: .* 1.5"),
        ({"loss": lambda output, target: output}, "loss: .*scalar"),
        ({"batches": NUMBERS[0]}, "loss: "),
        ({"nonsense": 3}, "nonsense"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        Subject(Net).check(**{"widths": SMALL, **options})


@pytest.mark.parametrize("returned", [None, "model", 3, (Net(8), "adam"), (), [Net]])
def test_build_returns_the_wrong_type(returned):
    with refuses("wrong-type", argument="build"):
        o1.coord_check(lambda width: returned, widths=SMALL, batches=NUMBERS)


def test_build_is_no_function():
    with refuses("wrong-type", argument="build") as caught:
        o1.coord_check(Net(8), widths=SMALL, batches=NUMBERS)
    assert "got Net" in str(caught.value)


def test_two_widths_are_too_few():
    check = Subject(Net).check(widths=SMALL[:2])
    assert check.verdict == "UNCLEAR"
    assert code_of(check.causes[0]) == "too-few-sizes"
    text = " ".join(str(check).split())
    assert text.count(without_code(check.causes[0])) == 1  # not again for each row


def test_batches_that_end_early_leave_the_steps_that_were_made():
    check = Subject(Net).check(widths=SMALL, batches=(NUMBERS for _ in range(2)))
    assert check.verdict == "UNCLEAR"
    (cause,) = check.causes
    assert code_of(cause) == "too-few-batches"
    assert "2 of 4 steps" in cause
    assert check.frame.step.max() == 2


def test_a_loss_that_is_not_finite_leaves_the_rest():
    """The largest model diverges at once."""

    def loss(output, target):
        return functional.cross_entropy(output, target) * (
            math.nan if state["width"] == 128 else 1.0
        )

    def build(width):
        state["width"] = width
        return Net(width)

    state = {}
    check = o1.coord_check(
        build, widths=(32, 64, 96, 128), lr=LR, batches=NUMBERS, loss=loss, seeds=[0, 1]
    )
    assert check.verdict == "UNCLEAR"
    assert code_of(check.causes[0]) == "run-diverged"
    assert "the loss is nan" in check.causes[0]
    assert len(check.frame)


def test_a_run_that_fails_after_others_costs_only_itself():
    def build(width):
        if width == 96:
            raise MemoryError("no room")
        return Net(width)

    check = o1.coord_check(build, widths=(32, 64, 96, 128), lr=LR, batches=NUMBERS, seeds=1)
    assert check.verdict == "UNCLEAR"
    assert code_of(check.notes[0]) == "run-failed"
    assert "width 96, seed 0" in check.notes[0]
    assert "MemoryError: no room" in check.notes[0]
    assert set(check.frame.width) == {32, 64, 128}


def test_after_an_interruption_finished_runs_are_returned():
    done = []

    def build(width):
        done.append(width)
        if len(done) > 5:
            raise KeyboardInterrupt
        return Net(width)

    check = o1.coord_check(build, widths=(32, 64, 128), lr=LR, batches=NUMBERS, seeds=3)
    assert check.interrupted
    assert check.verdict == "UNCLEAR"
    assert code_of(check.causes[0]) == "check-interrupted"
    assert len(check.frame)


def test_progress_false_means_none():
    assert Subject(Net).check(widths=SMALL, seeds=1, steps=1, progress=False).judgements


def test_progress_is_called_for_every_run():
    calls = []
    Subject(Net).check(widths=SMALL, seeds=1, steps=1, progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_frozen_on_purpose():
    check = healthy("frozen layer")
    assert check.passed, str(check)
    assert any(code_of(note) == "untrained-tensor" for note in check.notes)
    assert HEALTHY["frozen layer"].check(frozen="hid.*", seeds=1).passed


class Pooled(Net):
    """A network with a pooler that is computed beside the readout."""

    def __init__(self, width: int, reads: str = ""):
        super().__init__(width)
        self.pooler = nn.Linear(width, width)
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.hid(torch.relu(self.inp(x))))
        pooled = self.pooler(hidden)
        if self.reads == "without gradient":
            return self.out(hidden + pooled.detach())
        return self.out(hidden)


def test_a_layer_that_no_loss_reads_is_no_fault():
    check = Subject(Pooled).check(widths=WIDTHS, seeds=2)
    assert check.passed, str(check)
    [note] = [note for note in check.notes if code_of(note) == "untrained-tensor"]
    assert "pooler.weight, pooler.bias" in note


def test_a_layer_whose_gradient_is_cut_off_is_a_fault():
    check = Subject(lambda width: Pooled(width, "without gradient")).check(widths=SMALL, seeds=1)
    failed = {line.module for line in check.judgements if line.verdict == "FAIL"}
    assert failed >= {"pooler.weight", "pooler.bias"}
    assert not any(code_of(note) == "untrained-tensor" for note in check.notes)


def test_the_random_state_is_restored_and_hooks_are_removed():
    model, state = Net(64), torch.random.get_rng_state()
    Subject(lambda width: model if width == 64 else Net(width)).check(widths=SMALL, seeds=1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert not model._forward_hooks
    assert not model.hid._forward_hooks


def test_a_plan_is_judged_by_the_rule_of_the_plan():
    check = Subject(
        lambda width: o1.plan(Net(width), base=Net(32), rule="maximal-update", lr=LR)
    ).check(widths=SMALL)
    assert check.provenance["rule"] == "maximal-update"
    assert check.provenance["lr"] == LR
    assert check.verdict != "FAIL", str(check)


def test_a_pattern_of_frozen_tensors_that_matches_nothing():
    with pytest.raises(ValueError, match=r"frozen: .*'hidd\.\*'"):
        HEALTHY["frozen layer"].check(frozen="hidd.*", widths=SMALL, seeds=1)


def test_one_run_that_ends_early_does_not_hide_the_failures_of_others():
    """Without a rule, and one of eight networks starts with a loss that is not a number."""
    runs = []

    def loss(output, target):
        return functional.cross_entropy(output, target) * (math.nan if len(runs) == 7 else 1.0)

    def build(width):
        runs.append(width)
        return FAULTY["sp called mup"].build(width)

    check = o1.coord_check(build, widths=WIDTHS, batches=NUMBERS, loss=loss, seeds=2)
    assert check.verdict == "FAIL"
    assert "run-diverged" in map(code_of, check.notes)


def test_decay_that_cannot_be_measured_is_noted():
    class Alone(Net):
        def __deepcopy__(self, memo):
            raise RuntimeError("one of a kind")

    check = Subject(Alone).check(widths=SMALL, seeds=1, weight_decay=0.1)
    (note,) = [note for note in check.notes if code_of(note) == "decay-not-measured"]
    assert "RuntimeError: one of a kind" in note


def test_records_are_written_and_read(check, tmp_path):
    check.save(tmp_path / "records.jsonl")
    again = o1.measure.read(tmp_path / "records.jsonl")
    assert again.equals(check.frame) or (again.rms - check.frame.rms).abs().max() < 1e-12
    assert again.attrs["provenance"] == json.loads(json.dumps(check.frame.attrs["provenance"]))


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_printed_check_fits_the_terminal(check, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, str(check).splitlines())) <= columns


def test_text_names_the_verdict_first(check, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert str(check).startswith(
        f"{check.verdict}: mup for adamw with lr 0.01, widths 32, 64, 128, 3 steps, 2 seeds"
    )


def test_the_fault_alone_decides_the_verdict():
    """Check the same network with and without its fault: the fault alone decides."""
    check = healthy("larger heads")
    assert not (check.exponents.verdict == "FAIL").any()
    assert set(WIDTHS) == set(check.frame.width)


class OwnSgd(torch.optim.SGD):
    """A subclass as users write it, to clip or to log."""


@pytest.mark.parametrize(
    ("kind", "options", "law", "noted"),
    [
        (OwnSgd, {}, "sgd (test_coord_check.OwnSgd)", False),
        (OwnSgd, {"optimizer": "lion"}, "lion", False),
        (torch.optim.SGD, {"optimizer": "lion"}, "sgd", False),
        (torch.optim.Adamax, {}, "adamw", True),
    ],
)
def test_subclasses_of_optimizers_are_judged_by_the_inherited_law(kind, options, law, noted):
    def build(width):
        model = Net(width)
        return model, kind(model.parameters(), lr=0.01)

    check = Subject(build).check(widths=SMALL, steps=1, seeds=1, **options)
    assert check.provenance["optimizer"] == law
    assert ("optimizer-judged-as" in map(code_of, check.notes)) == noted
    assert any("adamw" in note for note in check.notes) == noted


def test_steps_before_the_law_of_the_optimizer_holds_are_inconclusive():
    check = HEALTHY["radam"].check(widths=SMALL, steps=4)
    assert check.verdict == "UNCLEAR"
    (cause,) = [cause for cause in check.causes if code_of(cause) == "law-begins-later"]
    assert "first 5 steps of RAdam" in cause
    assert "steps=9" in cause


def test_an_optimizer_of_an_unknown_class_is_judged_by_the_measured_law():
    check = HEALTHY["averaged sgd"].check(widths=SMALL, steps=1, seeds=1)
    assert check.provenance["optimizer"] == "sgd"
    (note,) = [note for note in check.notes if code_of(note) == "optimizer-judged-as"]
    assert "ASGD is judged as sgd" in note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frozen": 3}, "^frozen: .*3"),
        ({"frozen": ("nothing.*",)}, "^frozen: .*'nothing"),
        ({"loss": "mse"}, "^loss: .*'mse'"),
        ({"scheduler": "cosine"}, "^scheduler: .*'cosine'"),
        ({"progress": True}, "^progress: .*True"),
    ],
)
def test_mistakes_are_reported_before_any_training(options, words):
    def build(width):
        model = Net(width)
        model.register_forward_hook(lambda *_: pytest.fail("a pass was made"))
        return model

    with pytest.raises(ValueError, match=words):
        o1.coord_check(build, widths=SMALL, batches=NUMBERS, **options)


@pytest.mark.parametrize(
    "loss", [lambda y, t: y.detach().square().mean(), lambda y, t: y.argmax().float()]
)
def test_a_loss_that_depends_on_no_trained_tensor(loss):
    with refuses("detached-loss", argument="loss"):
        o1.coord_check(Net, widths=SMALL, batches=NUMBERS, loss=loss)


class Encoder(nn.Module):
    """torch's attention has the last matrix of its branch in a child that is never called."""

    def __init__(self, depth):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.emb, self.head = nn.Embedding(80, 16), nn.Linear(16, 80)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids):
        return self.head(self.layers(self.emb(ids)))


def test_depth_of_torch_attention():
    check = o1.coord_check(
        Encoder, depths=[1, 2, 4, 8], depth="completep", lr=1e-2, batches=TOKENS, seeds=1
    )
    assert check.passed, check


def test_scores_that_grow_with_fast_queries_are_not_blamed_on_the_attention_scale():
    def build(width):
        plan = o1.plan(Heads(width, power=1.0), base=Heads(SMALL[0], power=1.0), lr=LR)
        plan.apply()
        rows = {row.name: row for row in plan.rows}
        fast = {name: LR if name == "q.weight" else row.lr for name, row in rows.items()}
        tensors = plan.tensors()
        return plan.bound(), torch.optim.Adam(
            [{"params": [tensors[n]], "lr": lr} for n, lr in fast.items()]
        )

    check = Subject(build, batch=TOKENS).check(widths=(*SMALL, 256))
    assert check.verdict == "FAIL"
    (cause,) = check.causes
    assert code_of(cause) == "lr-not-scaled"
    assert "hidden" in cause


class Branch(nn.Module):
    """Layers of a Sequential: only its place in the stack counts the depth."""

    def __init__(self, multiplier=1.0):
        super().__init__()
        self.inside = nn.Sequential(
            nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)
        )
        self.multiplier = multiplier

    def forward(self, x):
        return x + self.multiplier * self.inside(x)


def stack(depth, power=0.0):
    branches = (Branch((2 / depth) ** power) for _ in range(depth))
    return nn.Sequential(nn.Linear(32, 32), *branches, nn.LayerNorm(32), nn.Linear(32, 10))


@pytest.mark.parametrize("depth", ["sqrt", "completep"])
def test_depth_of_layers_that_are_sequences(depth):
    check = o1.coord_check(stack, depths=(2, 4, 8), depth=depth, lr=3e-3, batches=NUMBERS)
    assert check.passed, str(check)
    assert {"*.inside.0", "*.inside.3"} <= set(check.exponents.module)


@pytest.mark.parametrize(("power", "codes"), [(1.0, []), (0.0, ["unscaled-branches"])])
def test_depth_with_multipliers_in_the_model(power, codes):
    def build(depth):
        model = stack(depth, power)
        return model, torch.optim.Adam(model.parameters(), lr=3e-3)

    check = o1.coord_check(build, depths=(2, 4, 8), depth="completep", batches=NUMBERS)
    assert check.verdict == ("FAIL" if codes else "PASS"), str(check)
    assert [code_of(cause) for cause in check.causes] == codes


def test_depth_with_multipliers_and_wrong_learning_rates():
    def build(depth):
        model = stack(depth, 0.5)
        return model, torch.optim.Adam(model.parameters(), lr=3e-3)

    check = o1.coord_check(build, depths=(2, 4, 8), depth="sqrt", batches=NUMBERS)
    assert check.verdict == "FAIL"
    assert code_of(check.causes[0]) == "lr-not-scaled", check.causes
    assert "learning rates of *.inside" in check.causes[0]


def test_an_error_of_the_model_names_the_arguments_to_look_at():
    wrong = (torch.randn(8, 3), NUMBERS[1][:8])
    with refuses("batch-not-accepted", argument="batches"):
        o1.coord_check(Net, widths=[32, 64], batches=wrong, lr=LR)


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("no derivative")


def test_another_error_names_the_size_of_the_model():
    def build(width):
        model = Net(width)
        model.register_forward_hook(lambda module, inputs, output: FailsInBackward.apply(output))
        return model

    with pytest.raises(NotImplementedError) as caught:
        o1.coord_check(build, widths=[32, 64], batches=NUMBERS, lr=LR)
    assert "width 32" in caught.value.__notes__[0]
