"""Many small GPTs in one program, compared with one after another:

    python benchmarks/stacked.py [cuda] [llama] [members] [64,128,256]

Four layers, byte vocabulary, AdamW; on a GPU bfloat16 autocast, context 128, batch 16. With `llama`
the models are unmodified Hugging Face Llamas, on a GPU with context 256. Every method
trains the same members on the same batches. The last column but one is the difference of their
losses after ten steps, which is rounding in bfloat16 that training amplifies.

    eager      one after another, fused AdamW
    replayed   one after another, each step a CUDA graph
    stacked    all in one program: eager, the whole step replayed, and compiled and replayed
"""

import copy
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.nn import GPT
from orderone.sweeping.stacked import CapturedStep, Stack

DEVICE = "cuda" if "cuda" in sys.argv else "cpu"
LLAMA = "llama" in sys.argv
numbers = [a for a in sys.argv[1:] if a not in ("cuda", "llama")]
MEMBERS = int(numbers[0]) if numbers else (64 if DEVICE == "cuda" else 16)
WIDTHS = (
    [int(w) for w in numbers[1].split(",")]
    if len(numbers) > 1
    else ([64, 128, 256] if DEVICE == "cuda" else [64])
)
BATCH, LENGTH = (16, 256 if LLAMA else 128) if DEVICE == "cuda" else (4, 32)
VOCAB, HEAD, ROUNDS, STEPS = 256, 32, 3, 20 if DEVICE == "cuda" else 3
SECONDS = 1.0  # of a round, if its steps would take longer
PRECISION = torch.bfloat16 if DEVICE == "cuda" else None


def main() -> None:
    print(
        f"{MEMBERS} members, {BATCH} x {LENGTH} tokens,"
        f" {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}, torch"
        f" {torch.__version__}, {torch.get_num_threads()} threads\n"
    )
    print(
        "| width | method | ms per step of all | speed-up | to replayed | difference of losses:"
        " median, worst | peak GB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for width in WIDTHS:
        compare(width)


def compare(width: int) -> None:
    models = [build(width, seed) for seed in range(MEMBERS)]
    tokens = torch.randint(VOCAB, (MEMBERS, BATCH, LENGTH + 1), device=DEVICE)
    ways: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "eager": lambda: one_by_one(models, tokens)
    }
    if DEVICE == "cuda":
        ways["replayed"] = lambda: replayed(models, tokens)
    ways["stacked"] = lambda: stacked(models, tokens)
    if DEVICE == "cuda":
        ways["stacked, replayed"] = lambda: stacked(models, tokens, graph=True)
        ways["stacked, compiled, replayed"] = lambda: stacked(
            models, tokens, compile=True, graph=True
        )
    times, reference = {}, None
    for name, make in ways.items():
        step = None
        try:
            forget()
            step = make()
            times[name], losses = timed(step)
        except Exception as error:
            print(f"| {width} | {name} | {type(error).__name__}: {str(error)[:200]} |", flush=True)
            continue
        reference = losses if reference is None else reference
        speed, replay = times["eager"] / times[name], times.get("replayed")
        against = f"{replay / times[name]:.1f}x" if replay else ""
        gaps = ((losses - reference) / reference).abs()
        gap = f"{float(gaps.median()):.0e}, {float(gaps.max()):.0e}"
        memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if DEVICE == "cuda" else ""
        cells = (width, name, f"{1e3 * times[name]:.1f}", f"{speed:.1f}x", against, gap, memory)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def forget() -> None:
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(step: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Return the median seconds of a step of all members, and their losses after ten steps."""
    losses = [step().detach().float().clone() for _ in range(10)][-1]
    found = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        done = 0
        while done < STEPS and time.perf_counter() - start < SECONDS:
            step()
            done += 1
        wait()
        found.append((time.perf_counter() - start) / done)
    return median(found), losses


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def build(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    if LLAMA:
        return llama(width).to(DEVICE)
    return GPT(vocab=VOCAB, length=LENGTH, width=width, heads=max(width // HEAD, 1), depth=4).to(
        DEVICE
    )


def llama(width: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(width // HEAD, 1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=4,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def rate(member: int) -> float:
    return 1e-4 * 2 ** (member % 8)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.autocast(DEVICE, PRECISION, enabled=PRECISION is not None, cache_enabled=False):
        output = model(tokens[:, :-1])
        logits = getattr(output, "logits", output)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def one_by_one(models: list[nn.Module], tokens: Tensor) -> Callable[[], Tensor]:
    models = [copy.deepcopy(model) for model in models]
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=rate(k), fused=True) for k, m in enumerate(models)
    ]

    def step() -> Tensor:
        return torch.stack(
            [train(*member) for member in zip(models, optimizers, tokens, strict=True)]
        )

    return step


def train(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    loss = loss_of(model, tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def replayed(models: list[nn.Module], tokens: Tensor) -> Callable[[], Tensor]:
    """Replay the step of each member as a separate graph."""
    models = [copy.deepcopy(model) for model in models]
    graphs, losses = [], []
    for k, model in enumerate(models):
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate(k), fused=True, capturable=True)
        before = copy.deepcopy(model.state_dict())
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                train(model, optimizer, tokens[k])
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad()  # gradients belong to the graph's memory
        with torch.cuda.graph(graph):
            losses.append(train(model, optimizer, tokens[k]))
        graphs.append((graph, optimizer))
        model.load_state_dict(before)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()

    def step() -> Tensor:
        for graph, _ in graphs:
            graph.replay()
        return torch.stack(losses)

    return step


def stacked(
    models: list[nn.Module], tokens: Tensor, compile: bool = False, graph: bool = False
) -> Callable[[], Tensor]:
    models = [copy.deepcopy(model) for model in models]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=rate(k)) for k, m in enumerate(models)]
    stack = Stack(models, optimizers, precision=PRECISION, compile=compile)
    batch = (tokens[:, :, :-1].contiguous(), tokens[:, :, 1:].contiguous())
    step = CapturedStep(stack, batch) if graph else stack.step
    return lambda: step(batch)


if __name__ == "__main__":
    main()
