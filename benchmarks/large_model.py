"""Throughput of `o1.train(compile=True)` against a loop written by hand, on one GPU:

    python benchmarks/large_model.py [small] [json=FILE]

A Hugging Face Llama of 1.3 billion parameters (24 layers of width 2048), sequences of 2048 tokens,
batch 8, bfloat16 autocast, fused AdamW, torch.compile. The loop by hand has one group of
parameters; `o1.train` has the groups of its plan. Both ways take turns, and time is read after
every ten steps. Floating point operations of a token: 6 N + 6 layers width length (N parameters
without embeddings; causal attention). `small` runs on a CPU, to test the script.
"""

import gc
import sys
import time
from itertools import pairwise
from statistics import median

import torch
from records import Records
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import orderone as o1

SMALL = "small" in sys.argv
DEVICE = "cpu" if SMALL else "cuda"
LAYERS, WIDTH, LENGTH, BATCH = (1, 32, 16, 2) if SMALL else (24, 2048, 2048, 8)
VOCAB = 256 if SMALL else 32000
WARM_UP, STEPS, ROUNDS = 10, 10, 3
PEAK = 790e12  # measured peak of matrix products in bfloat16 on an H200, operations per second
JSON = next((word.removeprefix("json=") for word in sys.argv if word.startswith("json=")), None)


def llama(width: int) -> nn.Module:
    heads = max(width // 128, 1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


class Data:
    """The same batch at every step; notes the time when it is read."""

    def __init__(self) -> None:
        tokens = torch.randint(VOCAB, (BATCH, LENGTH), device=DEVICE)
        self.batch: dict[str, Tensor] = {"input_ids": tokens, "labels": tokens}
        self.times: list[float] = []

    def read(self, step: int, seed: int) -> dict[str, Tensor]:
        self.times.append(time.perf_counter())
        return self.batch

    def seconds(self) -> list[float]:
        """Return seconds per step; both ways wait for the device after every `STEPS` steps."""
        marks = self.times[WARM_UP::STEPS]
        return [(after - before) / STEPS for before, after in pairwise(marks)]


def by_hand(model: nn.Module, data: Data) -> None:
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(WARM_UP + ROUNDS * STEPS + 1):
        batch = data.read(step, 0)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = compiled(**batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if (step + 1) % STEPS == 0:
            loss.item()
            wait()


def by_train(model: nn.Module, data: Data) -> None:
    with torch.device(DEVICE):
        base = llama(WIDTH // 2)
    plan = o1.plan(model, base=base, optimizer="adamw", lr=1e-4, inputs=data.batch)
    del base
    o1.train(
        plan,
        lambda step, seed: data.read(step, seed),
        WARM_UP + ROUNDS * STEPS + 1,
        precision="bfloat16",
        report_every=STEPS,
        device=DEVICE,
        compile=True,
    )


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        trained = sum(p.numel() for p in llama(WIDTH).parameters()) - 2 * VOCAB * WIDTH
    operations = (6 * trained + 6 * LAYERS * WIDTH * LENGTH) * BATCH * LENGTH
    print(f"{trained / 1e9:.2f} billion parameters without embeddings, torch {torch.__version__}")
    records = Records(JSON)
    found: dict[str, list[float]] = {"by hand": [], "o1.train": []}
    for turn in range(2):
        for name, way in (("by hand", by_hand), ("o1.train", by_train)):
            data = Data()
            started = time.perf_counter()
            with torch.device(DEVICE):
                model = llama(WIDTH)
            way(model, data)
            del model
            gc.collect()
            found[name] += data.seconds()
            print(f"turn {turn}, {name}: {time.perf_counter() - started:.0f} s in all", flush=True)
            records.add(f"large model: {name}", found[name])
            rate = operations / median(found[name])
            spread = f"{1e3 * min(found[name]):.1f} to {1e3 * max(found[name]):.1f}"
            print(
                f"{name}: {1e3 * median(found[name]):.1f} ms per step ({spread}),"
                f" {rate / 1e12:.0f} TFLOP/s, {100 * rate / PEAK:.0f} % of 790",
                flush=True,
            )
    share = median(found["by hand"]) / median(found["o1.train"])
    print(f"o1.train has {share:.3f} of the throughput of the loop by hand")


if __name__ == "__main__":
    main()
