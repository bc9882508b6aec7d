"""Forward and backward passes of our Transformers, compared with Hugging Face's with the same
attention kernels.

    python benchmarks/models.py [device] [rounds]

On a GPU: ViT-B/16 on 64 images of 224 x 224, BART-large on 8 x 512 tokens in and 128 out, in
bfloat16 by autocast; on a CPU: tiny models, only to test the script. Cross entropy on the logits,
gradients for every tensor, no optimizer. Every round runs every model once; times are medians. `as
theirs` has biases, gains and a class token like Hugging Face's; `as in S2` is the model of the
paper "Effective Theory of Transformers at Initialization", without them.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import orderone as o1

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Sizes:
    image: int
    classes: int
    images: int
    vocab: int
    length: int
    texts: int
    source: int
    target: int
    vision: dict[str, int]
    language: dict[str, int]


LARGE = Sizes(
    224,
    1000,
    64,
    50265,
    514,
    8,
    512,
    128,
    {"width": 768, "heads": 12, "depth": 12},
    {"width": 1024, "heads": 16, "depth": 12},
)
TINY = Sizes(
    32,
    10,
    4,
    101,
    66,
    2,
    32,
    16,
    {"width": 64, "heads": 4, "depth": 2},
    {"width": 64, "heads": 4, "depth": 2},
)


def vision(sizes: Sizes, device: str) -> dict[str, Run]:
    width, heads, depth = sizes.vision.values()
    theirs: dict[str, Any] = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": depth,
        "intermediate_size": 4 * width,
        "image_size": sizes.image,
        "patch_size": 16,
        "num_labels": sizes.classes,
        "hidden_dropout_prob": 0.0,
        "attn_implementation": "sdpa",
    }
    ours: dict[str, Any] = {
        "image": sizes.image,
        "patch": 16,
        "classes": sizes.classes,
        **sizes.vision,
    }
    models = {
        "Hugging Face": ViTForImageClassification(ViTConfig(**theirs)),
        "as theirs": o1.nn.VisionTransformer(**ours, pooling="class", bias=True, affine=True),
        "as in S2": o1.nn.VisionTransformer(**ours),
    }
    x = torch.randn(sizes.images, 3, sizes.image, sizes.image, device=device)
    y = torch.randint(0, sizes.classes, (sizes.images,), device=device)
    return {name: training(model.to(device), (x,), y) for name, model in models.items()}


def language(sizes: Sizes, device: str) -> dict[str, Run]:
    width, heads, depth = sizes.language.values()
    theirs: dict[str, Any] = {
        "d_model": width,
        "encoder_layers": depth,
        "decoder_layers": depth,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.length,
        "dropout": 0.0,
        "use_cache": False,
        "attn_implementation": "sdpa",
    }
    ours: dict[str, Any] = {"vocab": sizes.vocab, "length": sizes.length, **sizes.language}
    models = {
        "Hugging Face": BartForConditionalGeneration(BartConfig(**theirs)),
        "as theirs": o1.nn.EncoderDecoder(**ours, bias=True, affine=True),
        "as in S2": o1.nn.EncoderDecoder(**ours),
    }
    source = torch.randint(3, sizes.vocab, (sizes.texts, sizes.source), device=device)
    target = torch.randint(3, sizes.vocab, (sizes.texts, sizes.target), device=device)
    return {
        name: training(
            model.to(device),
            (source, None, target) if name == "Hugging Face" else (source, target),
            target,
        )
        for name, model in models.items()
    }


def training(model: nn.Module, inputs: tuple, labels: Tensor) -> Run:
    """Run a forward and a backward pass."""
    model.train()
    device = labels.device.type

    def run() -> Tensor:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            output = model(*inputs)
            logits = getattr(output, "logits", output)
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        return loss.detach()

    return run


def medians(runs: dict[str, Run], device: str, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 3):  # the first ones warm up
        for name, run in runs.items():
            synchronise(device)
            start = time.perf_counter()
            run()
            synchronise(device)
            if number >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main(device: str = "cuda" if torch.cuda.is_available() else "cpu", rounds: str = "30") -> None:
    sizes = LARGE if device.startswith("cuda") else TINY
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU, tiny shapes"
    print(
        f"{name}, torch {torch.__version__}: forward and backward, bfloat16 autocast, medians of"
        f" {rounds}"
    )
    print(
        "| model | Hugging Face, ms | as theirs, ms | as in S2, ms | throughput as theirs | as in"
        " S2 |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for title, items, build in (
        ("ViT-B/16", sizes.images, vision),
        ("BART-large", sizes.texts, language),
    ):
        t = medians(build(sizes, device), device, int(rounds))
        theirs, alike, plain = t["Hugging Face"], t["as theirs"], t["as in S2"]
        print(
            f"| {title}, {items} | {theirs * 1e3:.1f} | {alike * 1e3:.1f} | {plain * 1e3:.1f} |"
            f" {theirs / alike:.2f}x | {theirs / plain:.2f}x |",
            flush=True,
        )


if __name__ == "__main__":
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    main(*sys.argv[1:])
