"""On a GPU: captured steps, compiled updates and `train` give the results of the CPU."""

import copy
import signal

import numpy as np
import pytest
import torch
from support import hf_families, hf_subjects
from support.stacked_subjects import gpt
from test_run_stacked import held, job, same, tokens, transformer, trials
from torch import nn
from torch.utils.checkpoint import checkpoint

import orderone as o1
from orderone.data import language
from orderone.gallery.s1 import deep_training
from orderone.nn import GPT
from orderone.sweeping.sequential import run_alone
from orderone.sweeping.stacked import CapturedStep, Stack, run_stacked
from orderone.training.stacked.tables import rows_of_tables

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
TEXT = bytes(range(97, 123)) * 400


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, transformer(schedule="cosine", warmup=3, clip=0.5, accumulate=2, evaluate_every=4)],
)
def test_stacks_give_the_outcomes_of_stand_alone_runs(options, graphs):
    j = job(precision="float64", device="cuda", graphs=graphs, **options)
    chosen = trials(j, rules=("mup", "standard"))
    same(list(run_stacked(j, chosen)), list(run_alone(j, chosen)))


class Odd(nn.Module):
    """Recurrent model with recomputation and decisions on values, which a graph cannot capture."""

    def __init__(self, width: int, decides: bool):
        super().__init__()
        self.core, self.block, self.head = (
            nn.GRU(6, width),
            nn.Linear(width, width),
            nn.Linear(width, 3),
        )
        self.decides = decides

    def forward(self, x):
        h = self.core(x.unsqueeze(1))[0].squeeze(1)
        h = checkpoint(lambda h: torch.tanh(self.block(h)), h, use_reentrant=False)
        return self.head(2 * h if self.decides and h.sum() > 0 else h)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("decides", [False, True])
def test_odd_models_in_stacks(decides, graphs):
    j = job(
        build=lambda width: Odd(width, decides), precision="float64", device="cuda", graphs=graphs
    )
    same(list(run_stacked(j, trials(j))), list(run_alone(j, trials(j))))


@pytest.mark.parametrize(
    "build", [lambda width: Odd(width, True), lambda width: Constant(width, False)]
)
def test_passes_of_single_trainings_are_replayed_where_possible(build):
    outcomes = {}
    for graphs in (False, True):
        j = job(build=build, precision="float64", device="cuda", graphs=graphs, accumulate=2)
        outcomes[graphs] = list(run_alone(j, trials(j)))
    decides = isinstance(build(8), Odd)
    assert {o.facts["graph"] for o in outcomes[True]} == {not decides}
    same(outcomes[True], outcomes[False])


class Constant(nn.Module):
    """Model that copies constants from the CPU in every pass, like the sliding-window caches of
    Hugging Face models."""

    def __init__(self, width: int, asks_the_cpu: bool):
        super().__init__()
        self.inner, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.shift = torch.tensor([0.5, 1.5])  # neither a parameter nor a buffer
        self.asks_the_cpu = asks_the_cpu

    def forward(self, x):
        shift = (
            self.shift.to(x.device)
            + torch.tensor(0.25, device=x.device)
            + torch.as_tensor([1, 2], device=x.device)
        )
        if self.asks_the_cpu:
            x = x.cpu().to(x.device)  # a graph cannot capture this
        return self.head(torch.tanh(self.inner(x))) * shift.sum()


@pytest.mark.parametrize("asks_the_cpu", [False, True])
def test_constants_are_captured_and_other_copies_are_stacked_without_a_graph(asks_the_cpu):
    j = job(
        build=lambda width: Constant(width, asks_the_cpu),
        precision="float64",
        device="cuda",
        graphs=True,
    )
    stacked = list(run_stacked(j, trials(j)))
    assert {(o.facts["engine"], o.facts["graph"]) for o in stacked} == {
        ("stacked", not asks_the_cpu)
    }
    same(stacked, list(run_alone(j, trials(j))))


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_padded_batches_in_stacks(name, graphs):
    def batch(step, seed):
        return hf_subjects.padded(torch.Generator().manual_seed(100 * seed + step), "sometimes")

    def build(width):
        return hf_subjects.MODELS[name](hidden_size=width, intermediate_size=2 * width)

    j = job(
        build=build, data=held("padded", batch), precision="float64", device="cuda", graphs=graphs
    )
    same(list(run_stacked(j, trials(j))), list(run_alone(j, trials(j))))


def test_a_gpu_gives_the_losses_of_the_cpu():
    here, there = (
        job(precision="float64", device=device, **transformer()) for device in ("cpu", "cuda")
    )
    same(list(run_stacked(there, trials(there))), list(run_stacked(here, trials(here))))


def test_a_sweep_on_a_gpu_has_the_final_losses_of_the_cpu():
    space = {"lr": o1.log_grid(1e-4, 1e-1, 4), "seed": range(2)}
    task = language(TEXT, length=16, batch=8)

    def build(width):
        return GPT(vocab=256, length=16, width=width, heads=2, depth=1)

    def losses(device):
        s = o1.sweep(
            build,
            space,
            widths=[16, 32],
            data=task,
            steps=20,
            device=device,
            precision="float64",
            progress=False,
        )
        return s.frame.sort_values(["width", "lr", "seed"]).loss

    assert np.allclose(losses("cpu"), losses("cuda"), rtol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_loss_falls_and_a_training_is_resumed(tmp_path, precision):
    stop_at = []

    def batch(step, seed):
        if step in stop_at:
            stop_at.clear()
            signal.raise_signal(signal.SIGINT)
        return tokens(step % 2, seed)

    def trained(path):
        torch.manual_seed(0)
        plan = o1.plan(gpt(32), base=gpt(16), rule="mup", optimizer="adamw", lr=1e-2)
        return o1.train(
            plan, held("tokens", batch), 12, precision=precision, checkpoint=path, device="cuda"
        )

    whole = trained(tmp_path / "whole.safetensors")
    stop_at.append(5)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "half.safetensors")
    rest = trained(tmp_path / "half.safetensors")
    assert whole.losses[-1] < whole.losses[0]
    assert np.allclose(whole.losses, rest.losses, rtol=1e-4 if precision == "float32" else 2e-2)


def test_captured_dropout_differs_between_members_and_steps():
    models = [nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)) for _ in "abc"]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    stack = Stack(
        models, [torch.optim.SGD(model.parameters(), lr=0.0) for model in models], device="cuda"
    )
    batch = (
        torch.randn(1, 5, 4, device="cuda").repeat(3, 1, 1),
        torch.randint(2, (1, 5), device="cuda").repeat(3, 1),
    )
    step = CapturedStep(stack, batch)
    losses = torch.stack([step(batch).clone() for _ in range(4)])
    assert len(losses.unique()) == 12  # weights and inputs are the same: only masks differ


class CompiledRun(deep_training.Run):
    def _stack(self):
        stack = super()._stack()
        stack.compile = True
        return stack


@pytest.mark.parametrize("kind", [deep_training.Run, CompiledRun])
def test_deep_networks_on_parallel_streams_equal_sequential_ones(kind):
    """The same programs give the same bits.

    A tolerance would not do: beyond the critical line, one rounding of the weights grows to 7e-2 in
    50 steps (depth 30, on a CPU: `test_one_rounding_grows_in_chaotic_networks_only`).
    """
    images = deep_training.read_images("digits", "cuda")
    training = deep_training.Training(width=32, batch=16, bias_var=0.05, keep=0.9, orthogonal=True)

    def runs():
        return [
            kind(training, deep_training.Members(d, [1.0, 2.0], [0.1, 0.1]), images)
            for d in (30, 20, 10)
        ]

    together, alone = runs(), runs()
    deep_training.train(together, 50, "side by side")
    for run in alone:
        deep_training.train([run], 50, "alone")
    for one, other in zip(together, alone, strict=True):
        assert one.advance.compiled == (kind is CompiledRun), one.advance.compile_error
        for name, tensor in one.stack.parameters.items():
            assert torch.equal(tensor, other.stack.parameters[name]), (one.members.depth, name)


@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_step_owns_what_it_reads(compile):
    """Memory that a step does not own is reused by the captures that follow."""

    def stack():
        torch.manual_seed(0)
        models = [nn.Linear(4, 3) for _ in range(2)]
        optimizers = [
            torch.optim.AdamW(m.parameters(), lr=0.01 * (k + 1)) for k, m in enumerate(models)
        ]
        return Stack(models, optimizers, device="cuda", compile=compile)

    batch = torch.randn(2, 5, 4, device="cuda"), torch.randint(3, (2, 5), device="cuda")
    captured, expected = stack(), stack()
    step = CapturedStep(captured, batch)
    later = [CapturedStep(stack(), batch) for _ in range(40)]  # torch has 32 streams
    torch.cuda.empty_cache()
    filled = [torch.full((2**20,), 1e30, device="cuda", dtype=torch.float64) for _ in range(8)]
    for _ in range(3):
        assert torch.allclose(step(batch), expected.step(batch), rtol=1e-5)
    assert len(later) + len(filled) == 48


@pytest.mark.parametrize("run", [run_stacked, run_alone])
def test_a_smaller_last_batch_is_trained_beside_the_graph(run):
    def batch(step, seed):
        ids, targets = tokens(step, seed)
        return (ids[:-1], targets[:-1]) if step % 4 == 3 else (ids, targets)

    outcomes = {}
    for graphs in (False, True):
        options = {"build": gpt, "data": held("epochs", batch)}
        j = job(precision="float64", device="cuda", graphs=graphs, **options)
        outcomes[graphs] = list(run(j, trials(j)))
    assert {o.facts["graph"] for o in outcomes[True]} == {True}
    same(outcomes[True], outcomes[False])


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_experts_are_captured(family, precision):
    def losses(stacked, **options):
        result = o1.sweep(
            lambda width: hf_families.build(family, width),
            space={"lr": [1e-3, 2e-3], "seed": range(2)},
            widths=[32],
            data=hf_families.batch_of(family),
            steps=6,
            precision=precision,
            device="cuda",
            stacked=stacked,
            progress=False,
            **options,
        )
        outcomes = list(result.outcomes.values())
        graphs = {o.facts["graph"] for o in outcomes}
        return np.array([o.losses for o in outcomes], float), graphs

    captured, graphs = losses(True, graphs=True)
    assert graphs == {True}
    alone, _ = losses(False, graphs=False)
    assert np.allclose(captured, alone, rtol=1e-4 if precision == "float32" else 1e-2)


def test_compiled_sweeps_repeat():
    def losses():
        torch.compiler.reset()
        result = o1.sweep(
            lambda width: hf_families.build("llama", width),
            space={"lr": [1e-3, 2e-3], "seed": range(2)},
            widths=[32],
            data=hf_families.batch_of("llama"),
            steps=20,
            precision="bfloat16",
            device="cuda",
            stacked=True,
            compile=True,
            graphs=True,
            progress=False,
        )
        outcomes = list(result.outcomes.values())
        assert {o.facts["compiled"] for o in outcomes} == {True}
        return np.array([o.losses for o in outcomes], float)

    assert np.array_equal(losses(), losses())


@pytest.mark.parametrize("compile", [False, True])
def test_traced_passes_take_the_way_of_the_model_without_a_graph(compile):
    models = [hf_families.build("llama", 16).double() for _ in range(2)]
    batch = {
        name: torch.stack([hf_families.batch(0, k)[name] for k in range(2)]).cuda()
        for name in hf_families.batch(0, 0)
    }

    def stack():
        own = [copy.deepcopy(model) for model in models]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in own]
        return Stack(own, optimizers, device="cuda", compile=compile)

    expected = stack()
    captured = stack()
    step = CapturedStep(captured, batch)
    assert step.traced
    for _ in range(3):
        assert torch.allclose(step(batch), expected.step(batch), rtol=1e-5)
    for name, tensor in captured.parameters.items():
        assert torch.allclose(tensor, expected.parameters[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 32, 1000])
def test_gradients_of_stacked_tables_have_the_same_bits(rows):
    generator = torch.Generator("cuda").manual_seed(0)
    tables = torch.randn(4, rows, 64, device="cuda", generator=generator, requires_grad=True)
    ids = torch.randint(rows, (4, 8192), device="cuda", generator=generator)
    weights = torch.randn(4, 8192, 64, device="cuda", generator=generator)

    def gradient():
        chosen = rows_of_tables(tables, ids)
        return torch.autograd.grad((chosen * weights).sum(), tables)[0]

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(20))
    exact = torch.zeros(4, rows, 64, dtype=torch.float64)
    for member in range(4):
        exact[member].index_add_(0, ids[member].cpu(), weights[member].double().cpu())
    assert torch.allclose(first.double().cpu(), exact, rtol=1e-4, atol=1e-3)
