"""On a GPU: captured steps, one compiled update and `train` give what they give elsewhere."""

import signal

import numpy as np
import pytest
import torch
from stacked_subjects import gpt
from test_run_stacked import held, job, same, tokens, transformer, trials

import orderone as o1
from orderone.data import language
from orderone.nn import GPT
from orderone.sweeping.alone import run_alone
from orderone.sweeping.stacked import run_stacked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
TEXT = bytes(range(97, 123)) * 400


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "options", [{}, transformer(schedule="cosine", warmup=3, clip=0.5, accumulate=2, evaluate_every=4)]
)
def test_stacks_give_the_outcomes_of_one_after_another(options, graphs):
    j = job(precision="float64", device="cuda", graphs=graphs, **options)
    chosen = trials(j, rules=("mup", "standard"))
    same(list(run_stacked(j, chosen)), list(run_alone(j, chosen)))


def test_a_gpu_gives_what_the_cpu_gives():
    here, there = (job(precision="float64", device=device, **transformer()) for device in ("cpu", "cuda"))
    same(list(run_stacked(there, trials(there))), list(run_stacked(here, trials(here))))


def test_a_sweep_on_a_gpu_ends_with_the_losses_of_the_cpu():
    space = {"lr": o1.log_grid(1e-4, 1e-1, 4), "seed": range(2)}
    task = language(TEXT, length=16, batch=8)

    def build(width):
        return GPT(vocab=256, length=16, width=width, heads=2, depth=1)

    def losses(device):
        s = o1.sweep(
            build, space, widths=[16, 32], data=task, steps=20, device=device, precision="float64", progress=False
        )
        return s.frame.sort_values(["width", "lr", "seed"]).loss

    assert np.allclose(losses("cpu"), losses("cuda"), rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_goes_down_and_goes_on(tmp_path, precision):
    stop_at = []

    def batch(step, seed):
        if step in stop_at:
            stop_at.clear()
            signal.raise_signal(signal.SIGINT)
        return tokens(step % 2, seed)

    def trained(path):
        torch.manual_seed(0)
        plan = o1.plan(gpt(32), base=gpt(16), rule="mup", optimizer="adamw", lr=1e-2)
        return o1.train(plan, held("tokens", batch), 12, precision=precision, checkpoint=path, device="cuda")

    whole = trained(tmp_path / "whole.safetensors")
    stop_at.append(5)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "half.safetensors")
    rest = trained(tmp_path / "half.safetensors")
    assert whole.losses[-1] < whole.losses[0]
    assert np.allclose(whole.losses, rest.losses, rtol=1e-4 if precision == "float32" else 2e-2)
