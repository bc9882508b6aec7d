"""A coordinate check compared with mup's `get_coord_data` on the same networks, and with a lower
bound for both.

    python benchmarks/coord_check.py [repetitions] [device]

Widths 64 to 1024, 4 steps, 3 seeds, one batch, AdamW, one thread; medians of interleaved runs. On a
CPU, times are those of the process on the processor, so that other work on the machine does not
count; on a GPU, they are times of the clock. A check with 4 steps records five passes, the last one
after the last update; mup records none after its last update. So mup runs with 4 steps, and with 5,
in which it records the same passes.

The lower bound ("floor") is training without recording: build, forward, backward, fused AdamW. For
the MLP there is a second bound, with all seeds stacked into one tensor program; the lower one
counts. On a GPU, both build models on the host and move them.
"""

import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mup import MuReadout, set_base_shapes
from mup.coord_check import get_coord_data
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import orderone as o1

WIDTHS, STEPS, SEEDS, LR = (64, 128, 256, 512, 1024), 4, 3, 1e-2


class MLP(nn.Module):
    def __init__(self, width: int, readout: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.first, self.second, self.third = (
            nn.Linear(784, width),
            nn.Linear(width, width),
            readout(width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def gpt2(width: int, readout: type[nn.Linear] = nn.Linear) -> nn.Module:
    model = GPT2LMHeadModel(
        GPT2Config(
            n_embd=width,
            n_layer=2,
            n_head=width // 16,
            vocab_size=256,
            n_positions=64,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            tie_word_embeddings=False,
        )
    )
    if readout is not nn.Linear:
        model.lm_head = readout(width, 256, bias=False)
    return model


def for_mup(build: Callable[..., nn.Module], width: int) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        model = build(width, MuReadout)
        set_base_shapes(model, build(WIDTHS[0], MuReadout), delta=build(2 * WIDTHS[0], MuReadout))
        return model

    return made


def floor(
    build: Callable[[int], nn.Module], step: Callable[[nn.Module], Tensor], device: str
) -> None:
    for _ in range(SEEDS):
        for width in WIDTHS:
            model = build(width).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
            for _ in range(STEPS):
                optimizer.zero_grad()
                step(model).backward()
                optimizer.step()


def stacked_floor(x: Tensor, y: Tensor) -> None:
    """Train the MLP in the same way with all seeds in batched products."""
    inputs, labels = x.expand(SEEDS, *x.shape), y.repeat(SEEDS)
    for width in WIDTHS:
        shapes = ((784, width), (width, width), (width, 10))
        weights = [
            x.new_empty(SEEDS, *shape).uniform_(-1, 1).mul_(shape[0] ** -0.5) for shape in shapes
        ]
        biases = [x.new_zeros(SEEDS, 1, shape[1]) for shape in shapes]
        optimizer = torch.optim.AdamW(
            [p.requires_grad_() for p in (*weights, *biases)], lr=LR, fused=True
        )
        for _ in range(STEPS):
            optimizer.zero_grad()
            h = torch.baddbmm(biases[0], inputs, weights[0]).relu()
            h = torch.baddbmm(biases[1], h, weights[1]).relu()
            logits = torch.baddbmm(biases[2], h, weights[2]).flatten(0, 1)
            (SEEDS * nn.functional.cross_entropy(logits, labels)).backward()
            optimizer.step()


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    clock = time.process_time
    if torch.cuda.is_available():
        clock = time.perf_counter
    start = clock()
    result = action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start, result


def compare(
    name: str,
    ours: Callable,
    mups: Callable[[int], Any],
    floors: Sequence[Callable],
    repetitions: int,
) -> None:
    times: dict[str, list[float]] = {"ours": [], "mup": [], "same passes": [], "floor": []}
    check: Any = None
    data: Any = None
    for _ in range(repetitions):
        took, check = seconds(ours)
        times["ours"].append(took)
        took, data = seconds(lambda: mups(STEPS))
        times["mup"].append(took)
        times["same passes"].append(seconds(lambda: mups(STEPS + 1))[0])
        times["floor"].append(min(seconds(bare)[0] for bare in floors))
    t = {kind: statistics.median(values) for kind, values in times.items()}
    numbers = 4 * len(check.frame), len(data)  # rms, mean, max, finite; mup's l1
    print(
        f"| {name} | {t['ours']:.2f} | {t['mup']:.2f} | {t['floor']:.2f} |"
        f" {t['mup'] / t['ours']:.2f} | {t['same passes'] / t['ours']:.2f} |"
        f" {t['mup'] / t['floor']:.2f} | {numbers[0]} |"
        f" {numbers[1]} |",
        flush=True,
    )


def on_numbers(batch: int, repetitions: int, device: str) -> None:
    x, y = torch.randn(batch, 784, device=device), torch.randint(0, 10, (batch,), device=device)
    models = {width: for_mup(MLP, width) for width in WIDTHS}
    compare(
        f"MLP, batch {batch}",
        lambda: o1.coord_check(
            lambda width: MLP(width).to(device),
            WIDTHS,
            lr=LR,
            batches=(x, y),
            steps=STEPS,
            seeds=SEEDS,
            weight_decay=0.0,
        ),
        lambda steps: get_coord_data(
            models,
            [(x, y)],
            optimizer="adamw",
            lr=LR,
            nsteps=steps,
            nseeds=SEEDS,
            cuda=device == "cuda",
            show_progress=False,
        ),
        [
            lambda: floor(MLP, lambda model: nn.functional.cross_entropy(model(x), y), device),
            lambda: stacked_floor(x, y),
        ],
        repetitions,
    )


def on_text(shape: tuple[int, int], repetitions: int, device: str) -> None:
    ids = torch.randint(0, 256, shape, device=device)
    batch, models = (
        {"input_ids": ids, "labels": ids},
        {width: for_mup(gpt2, width) for width in WIDTHS},
    )

    def readable(name: str) -> bool:  # mup cannot record modules that give None among their outputs
        return bool(name) and not name.endswith("attn") and name != "transformer"

    compare(
        f"GPT-2, 2 layers, {shape[0]} x {shape[1]} tokens",
        lambda: o1.coord_check(
            lambda width: gpt2(width).to(device),
            WIDTHS,
            lr=LR,
            batches=batch,
            steps=STEPS,
            seeds=SEEDS,
            weight_decay=0.0,
        ),
        lambda steps: get_coord_data(
            models,
            [batch],
            optimizer="adamw",
            lr=LR,
            nsteps=steps,
            nseeds=SEEDS,
            cuda=device == "cuda",
            dict_in_out=True,
            show_progress=False,
            filter_module_by_name=readable,
        ),
        [lambda: floor(gpt2, lambda model: model(**batch).loss, device)],
        repetitions,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    times, device = int((sys.argv[1:] or ["3"])[0]), (sys.argv[2:] or ["cpu"])[0]
    print(
        "| network | orderone, s | mup, s | floor, s | mup / orderone |"
        " mup, same passes / orderone | mup / floor | records | records of mup |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for size in (16, 64):
        on_numbers(size, times, device)
    for tokens in ((2, 16), (8, 32)):
        on_text(tokens, times, device)
