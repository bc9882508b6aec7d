"""Data in the forms that users have: the same batches in every training, in any number of workers,
stacked or not, resumed or not."""

# pyright: reportArgumentType=false
# pyright: reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

import random

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

import orderone as o1
from orderone.core.errors import InputError, code_of
from orderone.training.source import read_source

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
SET = TensorDataset(X, Y)
BATCHES = [(X[k : k + 8], Y[k : k + 8]) for k in range(0, 40, 8)]


def net(width):
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


class Noisy(Dataset):
    """Draws from every generator that a data set may use, also from one of its own."""

    def __init__(self):
        self.own = np.random.default_rng(5)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        draws = [random.random(), np.random.rand(), torch.rand(()).item(), self.own.random()]
        return torch.tensor([float(index), *draws]), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        for k in torch.randperm(20).tolist():
            yield X[k], Y[k]


class StreamOfBatches(IterableDataset):
    def __iter__(self):
        yield from BATCHES


def numbers(data, steps=12, seed=0, **options):
    source = read_source(data, **options)
    return [source.at(step, seed)[0].clone() for step in range(steps)]


def same(batches, others):
    return all(torch.equal(x, y) for x, y in zip(batches, others, strict=True))


# --- order ----------------------------------------------------------------------------------------


def test_a_shuffling_loader_has_one_order_for_a_seed_and_a_new_one_in_each_epoch():
    loader = DataLoader(SET, batch_size=8, shuffle=True)
    batches = numbers(loader)
    assert same(batches, numbers(loader))
    assert not same(batches, numbers(loader, seed=1))
    epochs = [torch.cat(batches[0:5]), torch.cat(batches[5:10])]
    assert not torch.equal(*epochs)
    for epoch in epochs:  # every sample once
        assert torch.equal(epoch.sort(0).values, X.sort(0).values)


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(SET, generator=torch.Generator().manual_seed(3)),
        WeightedRandomSampler(torch.arange(1.0, 41), 40),
    ],
)
def test_generators_of_the_sampler_are_set_by_the_seed_and_left_as_they_were(sampler):
    loader = DataLoader(SET, batch_size=8, sampler=sampler)
    states = [torch.get_rng_state(), getattr(sampler, "generator", None)]
    before = states[1].get_state() if states[1] is not None else None
    batches = numbers(loader, 3)
    list(loader)
    if before is not None:
        states[1].set_state(before)
    torch.set_rng_state(states[0])
    assert same(batches, numbers(loader, 3))
    assert not same(batches, numbers(loader, 3, seed=1))
    assert torch.equal(torch.get_rng_state(), states[0])
    if before is not None:
        assert torch.equal(states[1].get_state(), before)


def test_random_numbers_of_samples_depend_on_seed_and_place_only():
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    source = read_source(loader)
    later = source.at(7, 0)[0]  # a resumed training starts here
    assert torch.equal(later, read_source(loader).at(7, 0)[0])
    batches = numbers(loader, 8)
    assert torch.equal(batches[7], later)
    assert not torch.equal(batches[2][:, 1:], batches[7][:, 1:])
    assert not source.notes


def test_workers_change_no_batch():
    alone = DataLoader(Noisy(), batch_size=4, shuffle=True)
    several = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)
    assert same(numbers(alone, 8), numbers(several, 8))
    source = read_source(several)
    interleaved = [source.many(step, [0, 1]) for step in range(4)]
    for step, (first, second) in enumerate(interleaved):
        assert torch.equal(first[0], numbers(alone, step + 1)[step])
        assert torch.equal(second[0], numbers(alone, step + 1, seed=1)[step])


def test_a_stream_is_read_from_its_beginning_by_every_seed():
    loader = DataLoader(Stream(), batch_size=5)
    assert same(numbers(loader, 9), numbers(loader, 9))
    assert not same(numbers(loader, 4), numbers(loader, 4, seed=1))
    assert same(numbers(Stream(), 3, batch_size=5), numbers(loader, 3))
    assert same(numbers(StreamOfBatches(), 7), [BATCHES[k % 5][0] for k in range(7)])


def test_a_generator_is_shared_by_no_two_readers():
    source = read_source(batch for batch in BATCHES)
    first = [source.at(step, 0)[0] for step in range(7)]
    second = [source.at(step, 1)[0] for step in range(7)]
    assert same(first, [BATCHES[k % 5][0] for k in range(7)])
    assert same(first, second)
    assert "data-repeats" in source.notes_on(7)[0]
    assert not source.notes_on(5)


def test_a_function_without_arguments_makes_new_iterators():
    def generator():
        yield from BATCHES

    assert same(numbers(generator, 7), [BATCHES[k % 5][0] for k in range(7)])
    assert same(numbers(lambda: DataLoader(SET, 8), 5), [x for x, _ in BATCHES])


def test_an_iterator_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("orderone.loading.passes.MOST_BYTES", 200)
    with refuses("data-read-once", argument="data"):
        read_source((batch for batch in BATCHES), hold=5)
    source = read_source(batch for batch in BATCHES * 2)
    source.at(4, 0)  # one pass is possible
    with refuses("data-read-once", argument="data"):
        source.at(0, 1)
    with refuses("data-read-once", argument="data"):
        source.at(10, 0)


def test_batches_of_arrays_lists_and_dicts_become_plain():
    encoding = pytest.importorskip("transformers").BatchEncoding({"input_ids": np.zeros((2, 3))})
    batch = read_source([encoding]).at(0, 0)
    assert type(batch) is dict
    assert isinstance(batch["input_ids"], torch.Tensor)
    assert isinstance(read_source([[X, Y]]).at(0, 0), tuple)


# --- identity -------------------------------------------------------------------------------------


def names(data, **options):
    return read_source(data, **options).name


def test_the_same_data_is_recognised_and_other_data_is_noticed():
    loader = DataLoader(SET, batch_size=8, shuffle=True)
    list(loader)  # used before
    assert names(loader) == names(DataLoader(TensorDataset(X.clone(), Y), 8, shuffle=True))
    assert names(loader) == names(DataLoader(SET, 8, shuffle=True, num_workers=2))
    changed = X.clone()
    changed[17, 3] += 1e-3
    others = [
        DataLoader(TensorDataset(changed, Y), 8, shuffle=True),
        DataLoader(SET, 10, shuffle=True),
        DataLoader(SET, 8),
        DataLoader(TensorDataset(X[:32], Y[:32]), 8, shuffle=True),
    ]
    assert len({str(names(other)) for other in [loader, *others]}) == 5
    generator = (batch for batch in BATCHES)
    assert names(generator) == names(batch for batch in BATCHES)
    assert names(generator) != names(batch for batch in BATCHES[1:])


def test_data_that_cannot_be_repeated_is_named():
    class Fresh(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.tensor(np.random.default_rng().random(4)), 0

    (note,) = read_source(Fresh(), batch_size=4).notes
    assert "data-not-repeatable" in note


class Kept(Dataset):
    """Samples that are made once and kept, with noise if `draws`."""

    def __init__(self, draws: bool):
        self.draws = draws
        self.kept: dict[int, torch.Tensor] = {}

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        if index not in self.kept:
            noise = torch.randn(4) if self.draws else torch.zeros(4)
            self.kept[index] = X[index] + noise
        return self.kept[index], 0


@pytest.mark.parametrize("draws", [False, True])
def test_data_that_keeps_what_it_has_drawn_is_named(draws):
    notes = read_source(Kept(draws), batch_size=4).notes
    assert [code_of(note) for note in notes] == ["data-not-repeatable"] * draws


def test_data_that_draws_anew_is_repeatable():
    class Noisy(Dataset):
        def __len__(self):
            return len(X)

        def __getitem__(self, index):
            return X[index] + torch.rand(X.shape[1]) + np.random.rand(), 0

    assert not read_source(Noisy(), batch_size=4).notes


# --- mistakes -------------------------------------------------------------------------------------


class CountingSampler(Sampler):
    calls = 0

    def __len__(self):
        return 40

    def __iter__(self):
        self.calls += 1
        return iter([(k * self.calls + self.calls) % 40 for k in range(40)])


@pytest.mark.parametrize(
    ("data", "options", "code"),
    [
        (SET, {}, "data-needs-batch-size"),
        (Stream(), {}, "data-needs-batch-size"),
        (lambda step, seed, batch_size: BATCHES[0], {}, "data-needs-batch-size"),
        ([], {}, "data-without-batches"),
        (iter([]), {}, "data-without-batches"),
        (TensorDataset(X[:4], Y[:4]), {"batch_size": 8}, "data-without-batches"),
        (BATCHES, {"batch_size": 8}, "batch-size-fixed"),
        (BATCHES[0], {"batch_size": 8}, "batch-size-fixed"),
        (lambda step, seed: BATCHES[0], {"batch_size": 8}, "batch-size-fixed"),
        (iter(BATCHES), {"batch_size": 8}, "batch-size-fixed"),
        (
            DataLoader(SET, batch_sampler=list(BatchSampler(range(40), 8, True))),
            {"batch_size": 4},
            "batch-size-fixed",
        ),
        (BATCHES, {"collate_fn": list}, "collate-without-samples"),
        (
            DataLoader(SET, 8, sampler=DistributedSampler(SET, 2, 0)),
            {},
            "distributed-sampler",
        ),
        (DataLoader(SET, 8, sampler=CountingSampler()), {}, "data-order-not-repeatable"),
        (3, {}, "training-data-expected"),
        (lambda step: BATCHES[0], {}, "training-data-expected"),
        (net(4), {}, "training-data-expected"),
        ("train.csv", {}, "training-data-expected"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(data, options, code):
    with refuses(code):
        read_source(data, **options).at(0, 0)


# --- sweeps ---------------------------------------------------------------------------------------

CALL = {"widths": [8], "device": "cpu", "progress": False}


@pytest.mark.parametrize(
    "data",
    [
        lambda: {"data": DataLoader(SET, 16, shuffle=True)},  # the last batch is smaller
        lambda: {"data": SET, "batch_size": 8},
        lambda: {"data": BATCHES},
        lambda: {"data": (batch for batch in BATCHES)},
        lambda: {"data": Stream(), "batch_size": 8},
        lambda: {"data": SET, "batch_size": 8, "collate_fn": _collate},
    ],
)
def test_stacked_trainings_read_the_data_of_stand_alone_ones(data):
    losses = []
    for stacked in (True, False):
        swept = o1.sweep(
            net, {"lr": [1e-3, 1e-2], "seed": [0, 1]}, steps=7, stacked=stacked, **data(), **CALL
        )
        assert not swept.frame["error"].notna().any()
        losses.append(swept.curves["loss"].to_numpy())
    np.testing.assert_allclose(*losses, rtol=1e-5)


def _collate(samples):
    x, y = zip(*samples, strict=True)
    return {"x": torch.stack(x), "labels": torch.stack(y)}["x"], torch.stack(y)


def test_batch_size_and_steps_can_be_swept():
    space = {"lr": [1e-3, 1e-2], "batch_size": [4, 16], "steps": [4, 6], "seed": [0, 1]}
    runs = {}
    for stacked in (True, False):
        swept = o1.sweep(net, space, data=SET, held_out=SET, stacked=stacked, **CALL)
        runs[stacked] = swept.frame.set_index("key")
        assert len(swept.best()) == 4  # each batch size and number of steps has its optimum
    frame = runs[True]
    assert (frame["updates"] == frame["steps"]).all()
    np.testing.assert_allclose(frame["loss"], runs[False].loc[frame.index]["loss"], rtol=1e-5)
    held_out = [(X, Y)]
    alone = o1.sweep(
        net, {"lr": [1e-2]}, data=SET, batch_size=16, steps=6, held_out=held_out, **CALL
    )
    chosen = frame[(frame.lr == 1e-2) & (frame.batch_size == 16) & (frame.steps == 6)]
    assert chosen[chosen.seed == 0].loss.item() == pytest.approx(alone.frame.loss.item(), rel=1e-5)


def test_the_schedule_follows_swept_steps():
    space = {"lr": [1e-2], "steps": [4, 8]}
    call = CALL | {"data": BATCHES, "schedule": "cosine"}
    for stacked in ("auto", False):
        swept = o1.sweep(net, space, stacked=stacked, **call)
        for steps in (4, 8):
            alone = o1.sweep(net, {"lr": [1e-2]}, steps=steps, **call)
            row = swept.frame[swept.frame.steps == steps]
            assert row.loss.item() == pytest.approx(alone.frame.loss.item(), rel=1e-5)


def test_a_function_gets_the_batch_size_that_it_names():
    def data(step, seed, batch_size=8):
        return X[:batch_size], Y[:batch_size]

    space = {"lr": [1e-2], "batch_size": [4, 40]}
    losses = o1.sweep(net, space, data=data, steps=2, **CALL).frame.set_index("batch_size").loss
    alone = o1.sweep(net, {"lr": [1e-2]}, data=(X[:4], Y[:4]), steps=2, **CALL)
    assert losses[4] == alone.frame.loss.item()
    task = o1.data.images("digits", batch=8)
    assert len(task.with_batch_size(3).batch(0, 0)[0]) == 3


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"space": {"steps": [2]}, "steps": 3}, "given-twice"),
        ({"space": {"batch_size": [2]}, "batch_size": 3, "steps": 3}, "given-twice"),
        ({"space": {"batch_size": [2, 64]}, "steps": 3}, "data-without-batches"),
        ({"space": {"steps": [0]}}, None),
    ],
)
def test_mistakes_with_swept_amounts(changed, code):
    with pytest.raises(InputError) as caught:
        o1.sweep(net, **CALL, **{"data": SET} | changed)
    assert code is None or caught.value.code == code


def test_a_store_continues_with_the_same_data_only(tmp_path):
    store = tmp_path / "runs.db"
    call = CALL | {"steps": 3, "store": store, "space": {"lr": [1e-2]}}
    assert o1.sweep(net, data=DataLoader(SET, 8, shuffle=True), **call).ran == 1
    assert o1.sweep(net, data=DataLoader(SET, 8, shuffle=True), **call).ran == 0
    assert o1.sweep(net, data=DataLoader(TensorDataset(X + 1, Y), 8), **call).ran == 1
    grown = call | {"space": {"lr": [1e-2], "batch_size": [4]}}
    assert o1.sweep(net, data=SET, **grown).ran == 1
    grown["space"]["batch_size"] = [4, 8]
    assert o1.sweep(net, data=SET, **grown).ran == 1


# --- train and measure ----------------------------------------------------------------------------


def test_train_continues_in_the_middle_of_an_epoch(tmp_path):
    def run(steps, checkpoint=None):
        torch.manual_seed(0)
        plan = o1.plan(net(16), base=net(8), lr=1e-2)
        loader = DataLoader(Noisy4(), batch_size=4, shuffle=True)
        path = None if checkpoint is None else tmp_path / checkpoint
        return o1.train(plan, loader, steps, checkpoint=path, device="cpu", report_every=1)

    whole = run(8)
    calls = []

    def stop(step, values):
        calls.append(step)

    with pytest.MonkeyPatch.context() as patch:
        from orderone.training import interrupts

        patch.setattr(interrupts, "pending", lambda: len(calls) >= 3)
        sink = type("S", (), {"start": lambda *a: None, "log": lambda s, *a: stop(*a)})
        sink.close = lambda *a: None
        torch.manual_seed(0)
        plan = o1.plan(net(16), base=net(8), lr=1e-2)
        loader = DataLoader(Noisy4(), batch_size=4, shuffle=True)
        path = tmp_path / "c.safetensors"
        options = {"checkpoint": path, "device": "cpu", "report_every": 1, "sinks": sink()}
        with pytest.raises(KeyboardInterrupt):
            o1.train(plan, loader, 8, **options)
    resumed = run(8, "c.safetensors")
    assert np.array_equal(whole.losses, resumed.losses)
    assert "data-repeats" in whole.notes[0]


class Noisy4(Noisy):
    def __getitem__(self, index):
        x, _ = super().__getitem__(index)
        return x[1:], index % 2


def test_a_check_and_an_alignment_read_a_loader():
    loader = DataLoader(SET, batch_size=16, shuffle=True)
    call = {"widths": [16, 32], "lr": 1e-2, "steps": 3, "seeds": 2}
    first = o1.coord_check(net, batches=loader, **call)
    again = o1.coord_check(net, batches=SET, batch_size=16, **call)
    again_whole = o1.coord_check(net, batches=DataLoader(SET, 16, True, drop_last=True), **call)
    assert first.frame.equals(o1.coord_check(net, batches=loader, **call).frame)
    assert again.frame.equals(again_whole.frame)
    assert any("data-repeats" in note for note in again.notes)
    by_step = o1.coord_check(net, batches=lambda step, seed: BATCHES[step], **call)
    assert by_step.frame.equals(o1.coord_check(net, batches=BATCHES, **call).frame)
    measured = o1.alignment(net, batches=loader, **call)
    assert len(measured.frame)


def test_build_with_other_parameters_is_refused_at_once():
    with refuses("build-arguments", argument="build"):
        o1.coord_check(lambda width, heads: net(width), widths=[8, 16], batches=BATCHES[0])
