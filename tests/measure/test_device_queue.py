"""Tensors on other devices are sized together and later; overwritten ones are never wrong.

Most of it is tested on the host, which is then treated like any other device; the kernel and the
rest again on a GPU.
"""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.measure import recording
from orderone.observe import device_queue, moments, step_recorder
from orderone.observe.device_queue import DeviceQueue, device_sizes

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture
def everything_on_another_device(monkeypatch):
    for module in (moments, recording, step_recorder):
        monkeypatch.setattr(module, "is_here", lambda x: False)


def expected(x: Tensor) -> list[float]:
    values = x.detach().cpu().double().numpy().ravel()
    with np.errstate(all="ignore"):
        found = (
            np.linalg.norm(values),
            values.sum(),
            np.abs(values).max(),
            np.sum(~np.isfinite(values)),
        )
    return [float(number) for number in found]


def awkward(dtype: torch.dtype, device: str) -> list[Tensor]:
    torch.manual_seed(0)
    plain = [torch.randn(n, dtype=torch.float64).to(dtype) for n in (1, 7, 1024, 70_001)]
    infinite, missing, both = (torch.randn(3000).to(dtype) for _ in range(3))
    infinite[2999] = -torch.inf
    missing[0] = both[5] = torch.nan
    both[1030] = torch.inf
    grid = torch.randn(40, 60).to(dtype)
    views = [grid.T, grid[::2, 3:], grid[0].expand(5, 60), torch.zeros(300, dtype=dtype)]
    return [x.to(device) for x in (*plain, infinite, missing, both)] + [x.to(device) for x in views]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_sizes_are_those_of_the_numbers(dtype, device):
    tensors = awkward(dtype, device)
    for x, found in zip(tensors, device_sizes(tensors).T.tolist(), strict=True):
        scale = float(x.double().abs().nan_to_num(posinf=0).sum())
        assert found == pytest.approx(expected(x), rel=1e-5, abs=1e-6 * scale, nan_ok=True)


@GPU
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_the_kernel_squares_what_single_precision_cannot(size):
    norm = float(device_sizes([torch.full((4096,), size, device="cuda")])[0, 0])
    assert norm == pytest.approx(64 * size, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_waiting_tensors_are_sized_in_any_number_of_batches(device, monkeypatch):
    tensors = [torch.randn(100 + k, dtype=DTYPES[k % 4], device=device) for k in range(40)]
    for memory in (0, 10_000, 2**27):
        monkeypatch.setattr(device_queue, "memory", lambda device, memory=memory: memory)
        ledger = DeviceQueue()
        for k, x in enumerate(tensors):
            ledger.hold(k, x.numel(), x, copy=False)
        found = {slot: size for slot, _, size in ledger.send().sizes()}
        assert list(ledger.send().sizes()) == []
        for k, x in enumerate(tensors):
            assert found[k] == pytest.approx(expected(x), rel=1e-5, abs=1e-4)


@GPU
def test_tensors_of_another_stream_are_sized_after_they_are_computed():
    ledger, stream, x = DeviceQueue(), torch.cuda.Stream(), torch.zeros(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**9)
        ledger.hold(0, x.numel(), x.add_(1), copy=False)
    assert [size for _, _, size in ledger.send().sizes()] == [(8192.0, 8192.0**2, 1.0, 0.0)]


def test_an_overwritten_tensor_is_lost_unless_it_was_copied():
    ledger, (a, b, c) = DeviceQueue(), torch.ones(3, 10).unbind()
    a, b, c = a.clone(), b.clone(), c.clone()
    for slot, (x, copy) in enumerate([(a, False), (b, True), (c, False)]):
        ledger.hold(slot, 10, x, copy)
    a.mul_(2)
    b.view(2, 5).mul_(2)
    found = {slot: size for slot, _, size in ledger.send().sizes()}
    assert ledger.overwritten == {0, 1}
    assert ledger.lost == {0}
    assert found[1] == found[2] == (pytest.approx(10**0.5), 10, 1, 0)


# --- the probe ------------------------------------------------------------------------------------


class InPlace(nn.Module):
    """Overwrite the outputs of layers; from step `late` on also that of the last but one."""

    def __init__(self, late: int = 10**9):
        super().__init__()
        self.layers, self.head = (
            nn.ModuleList(nn.Linear(12, 12) for _ in range(3)),
            nn.Linear(12, 5),
        )
        self.relu, self.late, self.calls = nn.ReLU(inplace=True), late, 0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:2]:
            x = self.relu(layer(x))
        y = self.layers[2](x)
        y = y.mul_(1.5) if self.calls >= self.late else y * 1.5
        self.calls += 1
        x = x + y
        x += 1
        return self.head(x)


def recorded(
    device: str = "cpu",
    late: int = 10**9,
    steps: int = 5,
    every: int = 1,
    precision=torch.float64,
    **options,
):
    torch.manual_seed(0)
    model = InPlace(late).to(device, precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(16, 12, dtype=precision).to(device)
    with o1.probe(model, optimizer, batch=x[:4], every=every, **options) as p:
        for _ in range(steps):
            optimizer.zero_grad()
            functional.mse_loss(model(x[:8]), x[:8, :5]).backward()
            functional.mse_loss(model(x[8:]), x[8:, :5]).backward()  # two passes are one step
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    return p.frame.set_index(["step", "module", "quantity"]).sort_index()


def same(one, two) -> None:
    assert list(one.index) == list(two.index)
    np.testing.assert_allclose(one.to_numpy(float), two.to_numpy(float), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("room", [0, 2**27])
@pytest.mark.parametrize(
    "options",
    [{}, {"every": 2}, {"quantities": "change"}, {"quantities": "output gradient"}],
    ids=str,
)
def test_a_probe_of_another_device_records_the_same_as_on_the_host(
    everything_on_another_device, monkeypatch, options, room
):
    for module in (device_queue, recording):
        monkeypatch.setattr(module, "memory", lambda device: room)
    found = recorded(**options)
    monkeypatch.undo()
    same(found, recorded(**options))


def test_with_little_memory_rows_are_missing_at_most_once_and_none_is_wrong(
    everything_on_another_device, monkeypatch
):
    """A tensor may be sized before it is overwritten in one step, and after it in the next."""
    for module in (device_queue, recording):
        monkeypatch.setattr(module, "memory", lambda device: 1000)
    found = recorded(steps=8)
    monkeypatch.undo()
    right = recorded(steps=8)
    missing = right.index.difference(found.index).droplevel("step")
    assert missing.is_unique
    assert len(missing) < 5
    same(found, right.loc[found.index])


@pytest.mark.parametrize(
    ("late", "lost"),
    [(7, ["output"]), (8, ["output"]), (6, ["change"])],
    ids=["in training", "in the second of two passes", "on the fixed batch"],
)
def test_a_tensor_that_is_overwritten_for_the_first_time_has_no_row(
    everything_on_another_device, monkeypatch, late, lost
):
    found = recorded(
        late=late
    )  # a pass for the fixed batch first, then three a step: within step 2
    monkeypatch.undo()
    right = recorded(late=late)
    missing = right.index.difference(found.index)
    assert list(missing) == [(2, "layers.2", quantity) for quantity in lost]
    same(found, right.loc[found.index])


@pytest.mark.parametrize("device", DEVICES)
def test_the_table_can_be_read_at_any_time_and_stores_names_once(device):
    model, x = InPlace().to(device), torch.randn(8, 12, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths, weights = [], []
    with o1.probe(model, optimizer, quantities=("output", "weight")) as p:
        for _ in range(4):
            weights.append(float(model.head.weight.detach().square().mean().sqrt()))
            model(x).sum().backward()
            optimizer.step()
            lengths.append(len(p.frame))
    assert [length / lengths[0] for length in lengths] == [1, 2, 3, 4]
    frame = p.frame[p.frame["quantity"].eq("weight") & p.frame["module"].eq("head.weight")]
    assert list(frame["rms"]) == pytest.approx(weights)
    assert len({id(step.keys) for step in p._history.steps}) == 1


@GPU
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_probe_of_a_gpu_records_the_same_as_on_the_host(precision):
    one, two = recorded("cuda", precision=precision), recorded(precision=precision)
    assert list(one.index) == list(two.index)
    error = 1e-9 if precision is torch.float64 else 1e-4
    np.testing.assert_allclose(one.to_numpy(float), two.to_numpy(float), rtol=error, atol=error)
