"""Trainers in two processes: DDP, FSDP2 and tensor parallel give the losses of one process."""

import socket

import pytest
import torch
from support.trainer_workers import EVERY, JOBS, PROCESSES, STEPS, batch, plan, process
from torch.multiprocessing.spawn import spawn

import orderone as o1

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(process, args=(str(folder), port), nprocs=PROCESSES)
    found = torch.load(folder / "results.pt", weights_only=False)
    failed = {name: text for name, text in found.items() if isinstance(text, str)}
    assert not failed, "\n".join(failed.values())
    return found


@pytest.fixture(scope="module")
def alone():
    clipped = o1.train(plan(), batch, STEPS, clip=1.0, device="cpu", sizes_every=EVERY)
    return {"clipped": clipped, "unclipped": o1.train(plan(), batch, STEPS, device="cpu")}


@pytest.mark.parametrize("job", JOBS)
def test_losses_of_one_process(job, results, alone):
    expected = alone["unclipped" if job == "tensor parallel" else "clipped"].losses
    assert results[job]["losses"] == pytest.approx(list(expected), rel=1e-5)


def test_sharded_tensors_have_the_settings_of_the_plan(results):
    assert results["trainer, fsdp2"]["kinds"] == {"DTensor"}
    assert results["trainer, ddp"]["kinds"] == {"Parameter"}


def test_accelerate_does_not_choose_fsdp_on_a_cpu(results):
    """If this fails, the workers no longer need to set the type themselves."""
    assert results["accelerate, fsdp2"]["chosen"] == "DistributedType.MULTI_CPU"


@pytest.mark.parametrize("job", ["trainer, ddp", "trainer, fsdp2"])
def test_logged_sizes_are_those_of_all_processes(job, results, alone):
    names = [f"model.layers.{layer}.mlp" for layer in range(2)]
    expected = {}
    for size in alone["clipped"].sizes:
        if size.name in names:
            expected.setdefault(size.step, {})[f"sizes/{size.name}"] = size.relative
    for logged, wanted in zip(results[job]["sizes"], expected.values(), strict=True):
        assert {name: logged[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)


def test_sizes_of_sharded_tensors_are_those_of_whole_tensors(results):
    made = plan()
    made.apply()
    for step, name, rms in results["fully_shard"]["sizes"]:
        if step == 0:
            tensor = made.bound().get_parameter(name).detach()
            assert rms == pytest.approx(tensor.square().mean().sqrt().item(), rel=1e-5)


def test_sizes_under_tensor_parallel(results):
    made = plan()
    model = made.apply()
    with o1.probe(model, quantities="output", modules=["*.mlp", "*.up_proj"]) as p:
        model(**batch(0))
    expected = dict(zip(p.frame.module, p.frame.rms, strict=True))
    found = {name: rms for step, name, rms in results["tensor parallel"]["sizes"] if step == 0}
    assert found == pytest.approx(expected, rel=1e-5)
