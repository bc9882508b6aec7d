"""Steps and passes of the probe: accumulated passes, shared modules, passes without gradients."""

import copy
from typing import Any

import pandas as pd
import pytest
import torch
from probe_oracle import (
    SIZES,
    ByHand,
    Seen,
    Shared,
    adamw,
    agree,
    batch,
    compare,
    outputs,
    sizes,
    squares,
    table,
    twins,
)
from support.probe_workers import net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import orderone as o1


def test_accumulated_passes_are_counted_together():
    frame = compare(net, squares, passes=3)
    assert set(frame["step"]) == {0, 1}


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
    """Under torch.func, a pass records all samples together."""
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
