"""The probe in distributed training."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from probe_oracle import sizes, table
from support.probe_workers import PROCESSES, STEPS, gathered, inputs, net, process, smooth, whole
from support.warm import spawn
from torch import Tensor

import orderone as o1


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
def test_every_process_of_a_distributed_training_records_its_part(rank, processes):
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


def test_every_process_records_its_part_of_sharded_tensors(processes):
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


@pytest.mark.parametrize("job", ["gathered, fsdp2", "gathered, tensor parallel"])
def test_records_of_all_processes_are_those_of_one(job, processes):
    """Except gradients of outputs under FSDP2: the loss of a process is a mean of its rows."""
    alone = gathered(smooth(bias="fsdp2" in job), whole)["rows"]
    expected = table(pd.DataFrame(alone))
    for rank in range(PROCESSES):
        found = rows_of(processes, job, rank)
        assert set(found) == set(expected)
        for key, wanted in expected.items():
            if key[2] == "output gradient" and "fsdp2" in job:
                wanted = [PROCESSES * x for x in wanted[:3]] + wanted[3:]
            assert found[key] == pytest.approx(wanted, rel=1e-4, abs=1e-6), key
