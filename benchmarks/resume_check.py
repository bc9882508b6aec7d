"""Does the check of resumed trainings refuse healthy ones? Kernels of a GPU may add in any order.

    python benchmarks/resume_check.py [cuda] [--seeds 3]

Every model is trained for three updates with a checkpoint, so that the check runs once, in every
precision and with two optimizers. All these models save all their state: any refusal is false.
The last column tells how far two equal updates are apart on this device: the largest difference of
a gradient relative to its norm.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import orderone as o1
from orderone.core.errors import InputError, code_of

WIDTH = 64
VOCAB = 97
BATCH = 16
TOKENS = 32
UPDATES = 3
PRECISIONS = ("float32", "bfloat16", "float16")
SETTINGS = {
    "gemma3_text": {"pad_token_id": 0},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH},
}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


class Convolutions(nn.Module):
    """Convolutions with batch norm, an upsampling and pooling: their gradients add in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(WIDTH, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Messages(nn.Module):
    """Two rounds of messages on a random graph: `index_add` sums with atomic additions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.enter = nn.Linear(8, WIDTH)
        self.leave = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        nodes = self.enter(x)
        generator = torch.Generator().manual_seed(0)
        edges = torch.randint(len(x), (2, 8 * len(x)), generator=generator).to(x.device)
        for layer in self.inner:
            sums = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
            nodes = nodes + torch.tanh(layer(sums) / 8)
        return self.leave(nodes)


class Recurrent(nn.Module):
    """An LSTM over embedded tokens with dropout between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.inner = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.1, batch_first=True)
        self.leave = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.inner(self.embedding(x))[0][:, -1])


def decoder(kind: str) -> nn.Module:
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        **SETTINGS.get(kind, {}),
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=16, d_ff=128, num_layers=2, num_heads=4
    )
    config.use_cache = False
    config.decoder_start_token_id = 0
    config.pad_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def of_tokens(step: int, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(VOCAB, (BATCH, TOKENS), generator=generator).to(device)
    return {"input_ids": x, "labels": x}


def of_vectors(step: int, device: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, *shape, generator=generator).to(device)
    return x, torch.randint(10, (BATCH,), generator=generator).to(device)


def of_words(step: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(VOCAB, (BATCH, TOKENS), generator=generator).to(device)
    return x, torch.randint(10, (BATCH,), generator=generator).to(device)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, str], Any]]] = {
    "gpt2": (lambda: decoder("gpt2"), of_tokens),
    "llama": (lambda: decoder("llama"), of_tokens),
    "gemma3": (lambda: decoder("gemma3_text"), of_tokens),
    "qwen3-moe": (lambda: decoder("qwen3_moe"), of_tokens),
    "t5": (t5, of_tokens),
    "convolutions": (Convolutions, lambda step, device: of_vectors(step, device, (3, 16, 16))),
    "messages": (Messages, lambda step, device: of_vectors(step, device, (8,))),
    "recurrent": (Recurrent, of_words),
}


def refusal(model: str, precision: str, optimizer: str, seed: int, device: str) -> str:
    """Train with a checkpoint; return the code of the refusal, or nothing."""
    build, batch = MODELS[model]
    torch.manual_seed(seed)
    module = build().to(device)
    rate = 1e-3 if optimizer == "adamw" else 1e-2
    with tempfile.TemporaryDirectory() as folder:
        try:
            o1.train(
                module,
                lambda step, _: batch(step, device),
                UPDATES,
                optimizer=OPTIMIZERS[optimizer](module.parameters(), lr=rate),
                precision=precision,
                device=device,
                checkpoint=Path(folder) / "run.safetensors",
            )
        except InputError as error:
            return f"{code_of(str(error))}: {error}"
    return ""


def distance(model: str, precision: str, seed: int, device: str) -> float:
    """Return how far the gradients of two equal passes are apart, relative to their norms."""
    build, batch = MODELS[model]
    torch.manual_seed(seed)
    module = build().to(device)
    half = getattr(torch, precision)
    passes: list[dict[str, Tensor]] = []
    for _ in range(2):
        module.zero_grad()
        torch.manual_seed(0)
        with torch.autocast(device, half, enabled=precision != "float32"):
            data = batch(0, device)
            if isinstance(data, dict):
                loss = module(**data).loss
            else:
                loss = nn.functional.cross_entropy(module(data[0]), data[1])
        loss.backward()
        passes.append(
            {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        )
    largest = 0.0
    for name, gradient in passes[0].items():
        norm = float(gradient.norm())
        if norm > 0:
            largest = max(largest, float((gradient - passes[1][name]).norm()) / norm)
    return largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of models, with commas")
    options = parser.parse_args()
    refused = 0
    names = [name for name in options.only.split(",") if name] or list(MODELS)
    for model in names:
        for precision in PRECISIONS:
            begin = time.perf_counter()
            texts: list[str] = []
            for optimizer in OPTIMIZERS:
                for seed in range(options.seeds):
                    text = refusal(model, precision, optimizer, seed, options.device)
                    if text:
                        texts.append(f"{optimizer}, seed {seed}: {text}")
            apart = max(distance(model, precision, s, options.device) for s in range(options.seeds))
            seconds = time.perf_counter() - begin
            trainings = options.seeds * len(OPTIMIZERS)
            print(
                f"{model:14} {precision:9} refused {len(texts)} of {trainings}"
                f"  gradients apart {apart:.1e}  {seconds:.0f} s",
                flush=True,
            )
            for text in texts:
                print(f"  {text}", flush=True)
            refused += len(texts)
    print(f"{refused} false refusals")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
