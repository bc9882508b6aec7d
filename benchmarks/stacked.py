"""Many small models in one program, compared with one after another:

    python benchmarks/stacked.py [cuda] [gpt study llama qwen3 gpt2 vit t5] [members] [64,128,256]
        [by-hand] [profile] [only] [timed-kernels] [combined-kernels] [proof] [seconds=100]
        [json=FILE]

Four layers, byte vocabulary, AdamW; on a GPU bfloat16 autocast and batch 16, with context 128 for
`gpt` (the default, `orderone.nn.GPT`) and 256 for unmodified Hugging Face models. `study` are the
GPTs of `transfer_study.py` (batch 8, context 128, heads of 64, separate readout). Every method
trains the same members on the same batches. The last column but two is the difference of their
losses after ten steps, which is rounding in bfloat16 that training amplifies; then come the peak
memory and the seconds until the first step (capture and compilation). Below a table: operations of
matrix products and attention per step, and what share of 790 TFLOP/s each method reaches. `profile`
lists the slowest kernels of the compiled step; `only` leaves out all but compiled stacks;
`timed-kernels` lets the compiler choose kernels by time, which sweeps do not, since losses would
differ between runs; `combined-kernels` lets it join small independent kernels. `by-hand` adds the
same GPTs written with batched products for this one architecture (`gpt_by_hand.py`), compiled and
replayed, and `nudged` one after another with every weight changed by one unit in its last place:
what rounding alone does to the losses. After `seconds`, no further method is begun.

    eager      one after another, fused AdamW; on a GPU 8 members are trained, and the time is
               multiplied
    replayed   one after another, each step a CUDA graph
    stacked    all in one program: compiled and replayed, the whole step replayed, and eager
    proof      `o1.sweep` of the members for a few steps: whether their stack was proved to equal
               stand-alone runs, and the seconds of that sweep
"""

import copy
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from gpt_by_hand import ByHand
from records import Records
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import orderone as o1
from orderone.nn import GPT
from orderone.sweeping.stacked import CapturedStep, Stack
from orderone.torch_compat import compiler_options
from orderone.training.stacked import compiling
from orderone.training.stacked.compiled_step import CompiledStep

WORDS = sys.argv[1:] if __name__ == "__main__" else []
HUGGING_FACE = ("llama", "qwen3", "gpt2", "vit", "t5")
OURS = ("gpt", "study")
KINDS = [word for word in WORDS if word in (*OURS, *HUGGING_FACE)] or ["gpt"]
DEVICE = "cuda" if "cuda" in WORDS else "cpu"
COMPILE = DEVICE == "cuda" or "compile" in WORDS
MEMBERS = 64 if DEVICE == "cuda" else 16
WIDTHS = [64, 128, 256] if DEVICE == "cuda" else [64]
NUMBERS = [word for word in WORDS if word.replace(",", "").isdigit()]
if NUMBERS:
    MEMBERS = int(NUMBERS[0])
if len(NUMBERS) > 1:
    WIDTHS = [int(width) for width in NUMBERS[1].split(",")]
JSON = next((word.removeprefix("json=") for word in WORDS if word.startswith("json=")), None)
LIMITS = [float(word.removeprefix("seconds=")) for word in WORDS if word.startswith("seconds=")]
LIMIT = LIMITS[0] if LIMITS else float("inf")
STARTED = time.perf_counter()
FEW = 8 if DEVICE == "cuda" else MEMBERS  # members that are trained eagerly, one after another
PROOF_STEPS = 20
FASTEST = 790e12  # operations per second: matrix products in bfloat16 on an H200, measured
# weights and momenta read and written (24), casts (6), gradients (4), products (4)
UPDATE_BYTES = 38
BANDWIDTH = 4.8e12  # bytes per second of an H200
VOCAB, HEAD, ROUNDS, STEPS = 256, 32, 3, 20 if DEVICE == "cuda" else 3
SECONDS = 1.0  # of a round, if its steps would take longer
PRECISION = torch.bfloat16 if DEVICE == "cuda" else None
RECORDS = Records(JSON)
PROFILED = ("stacked, compiled", "by hand")
# parts of the names of kernels, the first that fits
KINDS_OF_KERNELS = {
    "products": ("gemm", "nvjet", "cutlass", "bmm", "xmma"),
    "attention": ("flash", "fmha", "sdpa", "attention"),
    "updates": ("lerp", "sub_sqrt", "addcmul"),
    "casts of weights": ("triton_poi_fused__to_copy_permute", "triton_poi_fused__to_copy_"),
    "sums by id": ("index", "sort", "Sort", "radix", "embedding"),
    "other fused operations": ("triton",),
}
OPTIONS: dict[str, Any] = dict(compiler_options())
if "timed-kernels" in WORDS:
    OPTIONS = {}
if "combined-kernels" in WORDS:
    OPTIONS["combo_kernels"] = True
setattr(compiling, "compiler_options", lambda: dict(OPTIONS))  # noqa: B010, an experiment


def main() -> None:
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(
        f"{MEMBERS} members, {name}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(
        "\n| model | width | method | ms per step of all | speed-up | to replayed | difference of"
        " losses: median, worst | peak GB | seconds to start |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for kind in KINDS:
        for width in WIDTHS:
            compare(kind, width)


def sizes(kind: str) -> tuple[int, int]:
    """Return the batch size and the context."""
    if DEVICE == "cpu":
        return 4, 32
    if kind == "study":
        return 8, 128
    return 16, 128 if kind == "gpt" else 256


def batch_of(kind: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, with a leading axis of members."""
    batch, length = sizes(kind)
    generator = torch.Generator().manual_seed(0)
    if kind == "vit":
        images = torch.randn(MEMBERS, batch, 3, 32, 32, generator=generator)
        labels = torch.randint(10, (MEMBERS, batch), generator=generator)
        return images.to(DEVICE), labels.to(DEVICE)
    tokens = torch.randint(VOCAB, (MEMBERS, batch, length + 1), generator=generator).to(DEVICE)
    return tokens[:, :, :-1].contiguous(), tokens[:, :, 1:].contiguous()


def compare(kind: str, width: int) -> None:
    models = [build(kind, width, seed) for seed in range(MEMBERS)]
    batch = batch_of(kind)
    few = models[:FEW]
    few_batches = (batch[0][:FEW], batch[1][:FEW])
    ways: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "eager": lambda: one_by_one(few, few_batches)
    }
    if DEVICE == "cuda":
        ways["replayed"] = lambda: replayed(models, batch)
    if COMPILE:
        graph = DEVICE == "cuda"
        ways["stacked, compiled"] = lambda: stacked(models, batch, compile=True, graph=graph)
    if DEVICE == "cuda":
        ways["stacked, replayed"] = lambda: stacked(models, batch, graph=True)
    ways["stacked"] = lambda: stacked(models, batch)
    if "nudged" in WORDS:
        ways["nudged"] = lambda: one_by_one(nudged(models), batch)
    if "by-hand" in WORDS and kind == "gpt":
        ways["by hand"] = lambda: by_hand(models, batch)
    if "only" in WORDS:
        ways = {name: way for name, way in ways.items() if name in PROFILED}
    times: dict[str, float] = {}
    reference = None
    for name, make in ways.items():
        if time.perf_counter() - STARTED > LIMIT:
            print(f"| {kind} | {width} | {name} | left out after {LIMIT:g} s |", flush=True)
            continue
        forget()
        started = time.perf_counter()
        try:
            step = make()
            step_until = time.perf_counter() - started
            samples, losses = timed(step)
            samples = [seconds * MEMBERS / len(losses) for seconds in samples]
        except Exception as error:
            text = str(error).partition("\n")[0][:200]
            print(f"| {kind} | {width} | {name} | {type(error).__name__}: {text} |", flush=True)
            continue
        times[name] = median(samples)
        if reference is None:
            reference = losses
        RECORDS.add(f"stacked {kind} {width} {name}", samples, start=step_until)
        compared = min(len(losses), len(reference))
        gaps = (losses[:compared] / reference[:compared] - 1).abs()
        cells = [kind, str(width), name, f"{1e3 * times[name]:.2f}"]
        cells.append(f"{times['eager'] / times[name]:.1f}x" if "eager" in times else "")
        cells.append(f"{times['replayed'] / times[name]:.1f}x" if "replayed" in times else "")
        cells.append(f"{float(gaps.median()):.0e}, {float(gaps.max()):.0e}")
        memory = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
        cells += [f"{memory:.1f}", f"{step_until:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
        if "profile" in WORDS and name in PROFILED:
            show_kernels(step)
        del step
    if DEVICE == "cuda":
        show_rates(models[0], batch, times)
    if "proof" in WORDS:
        show_proof(kind, width)


def show_rates(model: nn.Module, batch: tuple[Tensor, Tensor], times: dict[str, float]) -> None:
    """Print the operations of a step of all members, and the rates of the methods."""
    with FlopCounterMode(display=False) as counter:
        loss_of(model, batch[0][0], batch[1][0]).backward()
    model.zero_grad()
    total = MEMBERS * counter.get_total_flops()
    weights = MEMBERS * sum(p.numel() for p in model.parameters())
    print(f"    {total:.3g} operations, {1e3 * total / FASTEST:.2f} ms at 790 TFLOP/s;", end=" ")
    print(f"{weights:.3g} weights, {1e3 * UPDATE_BYTES * weights / BANDWIDTH:.2f} ms of traffic")
    for name, seconds in times.items():
        rate_of = total / seconds
        print(f"    {name}: {rate_of / 1e12:.0f} TFLOP/s, {100 * rate_of / FASTEST:.0f} %")
    sys.stdout.flush()


def show_proof(kind: str, width: int) -> None:
    """Print how `o1.sweep` trains the members, and whether their stack was proved."""
    if time.perf_counter() - STARTED > LIMIT:
        print(f"| {kind} | {width} | proof | left out after {LIMIT:g} s |", flush=True)
        return
    forget()
    seeds = range(MEMBERS)
    inputs, targets = batch_of(kind)
    started = time.perf_counter()
    study = o1.sweep(
        lambda width: model_of(kind, width),
        {"lr": [rate(0)], "seed": seeds},
        widths=[width],
        base=width,
        data=lambda step, seed: (inputs[seed % MEMBERS], targets[seed % MEMBERS]),
        loss=lambda output, wanted: functional.cross_entropy(
            getattr(output, "logits", output).flatten(0, -2), wanted.flatten()
        ),
        steps=PROOF_STEPS,
        device=DEVICE,
        precision="bfloat16" if DEVICE == "cuda" else "float32",
        compile=False,
        progress=False,
    )
    seconds = time.perf_counter() - started
    outcome = next(iter(study.outcomes.values()))
    facts = {key: outcome.facts.get(key) for key in ("engine", "members", "verified")}
    print(f"| {kind} | {width} | proof | {seconds:.1f} s for {PROOF_STEPS} steps: {facts} |")
    for note in study.notes:
        print(f"    note: {note}")
    sys.stdout.flush()


def show_kernels(step: Callable[[], Tensor]) -> None:
    """Print the kernels of a step that take longest, and the time of each kind."""
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        for _ in range(3):
            step()
        wait()
    times: list[tuple[float, int, str]] = []
    for row in profiled.key_averages():
        total = row.self_device_time_total if DEVICE == "cuda" else row.self_cpu_time_total
        times.append((total / 3e3, row.count // 3, row.key))
    times.sort(reverse=True)
    by_kind: dict[str, float] = {}
    for milliseconds, _, name in times:
        kind = kind_of_kernel(name)
        by_kind[kind] = by_kind.get(kind, 0.0) + milliseconds
    total = sum(by_kind.values())
    print(f"\nkernels, ms per step ({total:.2f} in all, {sum(t[1] for t in times)} launches):")
    for kind, milliseconds in sorted(by_kind.items(), key=lambda pair: -pair[1]):
        print(f"  {milliseconds:.3f}  {kind}")
    for milliseconds, count, name in times[:15]:
        print(f"    {milliseconds:.3f}  {count:4d} x  {name[:120]}")
    print(flush=True)


def kind_of_kernel(name: str) -> str:
    for kind, parts in KINDS_OF_KERNELS.items():
        if any(part in name for part in parts):
            return kind
    return "other"


def forget() -> None:
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(step: Callable[[], Tensor]) -> tuple[list[float], Tensor]:
    """Return seconds of a step of all members, by round, and their losses after ten steps."""
    losses = [step().detach().float().clone() for _ in range(10)][-1]
    found: list[float] = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        done = 0
        while done < STEPS and time.perf_counter() - start < SECONDS:
            step()
            done += 1
        wait()
        found.append((time.perf_counter() - start) / done)
    return found, losses


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def build(kind: str, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return model_of(kind, width).to(DEVICE)


def model_of(kind: str, width: int) -> nn.Module:
    heads = max(width // (2 * HEAD if kind == "study" else HEAD), 1)
    _, length = sizes(kind)
    if kind in OURS:
        tied = kind != "study"
        return GPT(vocab=VOCAB, length=length, width=width, heads=heads, depth=4, tied=tied)
    return hugging_face(kind, width, heads, length)


def hugging_face(kind: str, width: int, heads: int, length: int) -> nn.Module:
    import transformers as hf

    sized: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
    }
    decoder: dict[str, Any] = {
        **sized,
        "vocab_size": VOCAB,
        "num_key_value_heads": heads,
        "max_position_embeddings": length,
        "use_cache": False,
    }
    if kind == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**decoder))
    if kind == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**decoder, head_dim=width // heads))
    if kind == "gpt2":
        shape: dict[str, Any] = {"vocab_size": VOCAB, "n_positions": length, "n_layer": 4}
        shape |= {"n_embd": width, "n_head": heads, "use_cache": False}
        dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        return hf.GPT2LMHeadModel(hf.GPT2Config(**shape, **dropout))
    if kind == "vit":
        picture: dict[str, Any] = {"image_size": 32, "patch_size": 4, "num_labels": 10}
        return hf.ViTForImageClassification(hf.ViTConfig(**sized, **picture))
    encoder_decoder: dict[str, Any] = {
        "d_model": width,
        "d_kv": width // heads,
        "d_ff": 4 * width,
        "num_heads": heads,
    }
    return T5(
        hf.T5ForConditionalGeneration(
            hf.T5Config(
                **encoder_decoder,
                vocab_size=VOCAB,
                num_layers=2,
                num_decoder_layers=2,
                dropout_rate=0.0,
                use_cache=False,
            )
        )
    )


class T5(nn.Module):
    """T5 that reads and predicts the same tokens."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, decoder_input_ids=tokens).logits


def rate(member: int) -> float:
    return 1e-4 * 2 ** (member % 8)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast(DEVICE, PRECISION, enabled=PRECISION is not None, cache_enabled=False):
        output = model(inputs)
        logits = getattr(output, "logits", output)
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def one_by_one(models: list[nn.Module], batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    models = [copy.deepcopy(model) for model in models]
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=rate(k), fused=True) for k, m in enumerate(models)
    ]

    def step() -> Tensor:
        members = zip(models, optimizers, *batch, strict=True)
        return torch.stack([train(*member) for member in members])

    return step


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> Tensor:
    loss = loss_of(model, inputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def replayed(models: list[nn.Module], batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
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
                train(model, optimizer, batch[0][k], batch[1][k])
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad()  # gradients belong to the graph's memory
        with torch.cuda.graph(graph):
            losses.append(train(model, optimizer, batch[0][k], batch[1][k]))
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


def nudged(models: list[nn.Module]) -> list[nn.Module]:
    """Return copies whose weights differ by one unit in the last place."""
    models = [copy.deepcopy(model) for model in models]
    with torch.no_grad():
        for model in models:
            for p in model.parameters():
                p.mul_(1 + torch.finfo(p.dtype).eps)
    return models


def by_hand(models: list[nn.Module], batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """Compile the step that was written by hand; on a GPU, replay it."""
    rates = [rate(k) for k in range(len(models))]
    program = ByHand(models, rates, batch, PRECISION, compile=COMPILE)
    if DEVICE != "cuda":
        return program.step
    tensors = [*program.weights.values(), *program.first.values(), *program.second.values()]
    tensors.append(program.t)
    before = [x.detach().clone() for x in tensors]
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            program.step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        losses = program.step()
    with torch.no_grad():
        for x, value in zip(tensors, before, strict=True):
            x.copy_(value)

    def step() -> Tensor:
        graph.replay()
        assert program  # owns the memory that the graph reads
        return losses

    return step


def stacked(
    models: list[nn.Module],
    batch: tuple[Tensor, Tensor],
    compile: bool = False,
    graph: bool = False,
) -> Callable[[], Tensor]:
    models = [copy.deepcopy(model) for model in models]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=rate(k)) for k, m in enumerate(models)]
    stack = Stack(models, optimizers, precision=PRECISION, compile=compile and graph)
    step: Callable[..., Tensor] = stack.step
    if graph:
        step = CapturedStep(stack, batch)
    elif compile:
        step = CompiledStep(stack, batch)
    error = getattr(step, "compile_error", None)
    if error is not None:
        raise RuntimeError(f"not compiled: {error}")
    return lambda: step(batch)


if __name__ == "__main__":
    main()
