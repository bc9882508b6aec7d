"""Are gradients of a stacked T5 in bfloat16 apart by rounding, or by a fault?

    python benchmarks/t5_rounding.py [cuda] [WIDTH]

An unmodified T5 (four layers, heads of 64, random tokens) is run alone and as the first of two
members of a `vmap`, with autocast to bfloat16 and without it. For every part of the model it prints
relative distances of gradients, |g - h| / |h|:

    stack      stacked in bfloat16 from alone in bfloat16: what the proof of a sweep measures
    rounding   alone in bfloat16 from alone in float32: what bfloat16 costs
    stacked    stacked in bfloat16 from alone in float32
    kernel     alone in bfloat16 with the attention that stacks use (the plain formula), from alone
               with the one that torch chooses
    nudged     alone in bfloat16 after one rounding of every weight, from alone in bfloat16
    float32    stacked from alone, both in float32

If `stack` is not larger than `rounding`, and `stacked` is like `rounding`, the stack is as good as
the stand-alone run, and the distance is rounding. A fault shows in `float32`, too.
"""

import sys

import torch
import transformers
from one_rounding import nudged
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda" if "cuda" in sys.argv else "cpu"
WIDTH = next((int(word) for word in sys.argv[1:] if word.isdigit()), 128)
BATCH = 16
LENGTH = 64
VOCAB = 260
Gradients = dict[str, Tensor]


def t5(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=64,
        d_ff=3 * WIDTH,
        num_layers=4,
        num_heads=WIDTH // 64,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    with torch.device(DEVICE):
        return transformers.T5ForConditionalGeneration(config)


def loss_of(model: nn.Module, parameters: Gradients, batch: Tensor, half: bool) -> Tensor:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        shifted = batch[1].roll(1, -1)
        inputs = {"input_ids": batch[0], "decoder_input_ids": shifted, "labels": batch[1]}
        return functional_call(model, parameters, kwargs=inputs, tie_weights=True).loss


def alone(model: nn.Module, batch: Tensor, half: bool) -> Gradients:
    """Return the gradients of one model."""
    model.zero_grad()
    loss_of(model, {}, batch, half).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def stacked(models: list[nn.Module], batch: Tensor, half: bool) -> Gradients:
    """Return the gradients of the first model, computed together with the others."""
    # tied tensors have one name, as in a stand-alone run
    names = [name for name, _ in models[0].named_parameters()]
    everything, _ = stack_module_state(models)  # pyright: ignore[reportArgumentType]
    parameters = {name: everything[name].detach().requires_grad_() for name in names}

    def loss(values: Gradients) -> Tensor:
        return loss_of(models[0], values, batch, half)

    with sdpa_kernel(SDPBackend.MATH):
        vmap(loss)(parameters).sum().backward()
    return {name: p.grad[0] for name, p in parameters.items() if p.grad is not None}


def parts(names: list[str]) -> dict[str, list[str]]:
    """Return the tensors by part: encoder or decoder, kind of layer, or the tensor itself."""
    groups: dict[str, list[str]] = {}
    for name in names:
        words = name.split(".")
        kinds = [word for word in words if word in ("SelfAttention", "EncDecAttention")]
        kinds += [word for word in words if word.startswith("Dense")]
        label = f"{words[0]} {kinds[0]}" if kinds else name
        groups.setdefault(label if "layer_norm" not in name else f"{words[0]} norms", []).append(
            name
        )
    return groups


def distance(first: Gradients, second: Gradients, names: list[str]) -> float:
    apart = sum(float((first[name] - second[name]).double().square().sum()) for name in names)
    size = sum(float(second[name].double().square().sum()) for name in names)
    return (apart / size) ** 0.5


def main() -> None:
    model, other = t5(0), t5(1)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, VOCAB, (2, BATCH, LENGTH), generator=generator).to(DEVICE)
    half = alone(model, batch, half=True)
    exact = alone(model, batch, half=False)
    half_stack = stacked([model, other], batch, half=True)
    exact_stack = stacked([model, other], batch, half=False)
    moved = alone(nudged(model), batch, half=True)
    with sdpa_kernel(SDPBackend.MATH):
        plain = alone(model, batch, half=True)
    pairs = {
        "stack": (half_stack, half),
        "rounding": (half, exact),
        "stacked": (half_stack, exact),
        "kernel": (plain, half),
        "nudged": (moved, half),
        "float32": (exact_stack, exact),
    }
    print(f"torch {torch.__version__}, {DEVICE}, width {WIDTH}")
    print(f"| part | {' | '.join(pairs)} |\n| --- {'| --- ' * len(pairs)}|")
    for part, names in parts(list(half)).items():
        cells = [f"{distance(first, second, names):.1e}" for first, second in pairs.values()]
        print(f"| {part} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
