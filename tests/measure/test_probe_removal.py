"""The probe removes its hooks and frees its tensors; several probes work side by side."""

import copy
import gc
import weakref
from collections.abc import Generator
from typing import Any

import pandas as pd
import pytest
import torch
from probe_oracle import (
    Attends,
    adamw,
    batch,
    squares,
    table,
    train,
    twins,
)
from support.errors import refuses
from support.probe_workers import net
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.measure.recording import QUANTITIES


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
    """Raise an error in the forward or the backward pass, on request."""

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


def test_a_graph_that_outlives_the_context_has_no_hooks():
    model = net()
    kept = []
    model[0].register_forward_hook(lambda m, a, y: kept.append(y))
    with o1.probe(model):
        squares(model, 0)
        assert kept[0]._backward_hooks
    assert not kept[0]._backward_hooks


def test_a_failure_on_entering_the_context_leaves_no_hooks():
    model = net()
    optimizer = adamw(model)
    with (
        refuses("batch-not-accepted", argument="batch"),
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


def test_a_copy_made_inside_the_context_is_not_recorded():
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


@pytest.mark.parametrize("build", [net, Attends])
def test_nested_probes_record_the_same(build):
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
    """One model is the input of the other, and one optimizer updates both."""
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


def test_a_model_can_be_probed_again():
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
