"""A traced step computes what the stack computes, and one program serves many stacks."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.sweeping.stacked import Stack
from orderone.training.stacked import compiling
from orderone.training.stacked.compiled_step import CompiledStep
from orderone.training.stacked.errors import NotCapturable
from orderone.training.stacked.traced_step import TracedStep

MEMBERS = 3
OPTIMIZERS: dict[str, Callable[[nn.Module, int], Optimizer]] = {
    "adamw": lambda model, k: torch.optim.AdamW(
        model.parameters(), lr=10 ** -(2 + k), betas=(0.9, 0.99 - 0.01 * k), weight_decay=0.1 * k
    ),
    "sgd": lambda model, k: torch.optim.SGD(model.parameters(), lr=0.1 / (k + 1), momentum=0.9),
    "adafactor": lambda model, k: torch.optim.Adafactor(model.parameters(), lr=0.01 * (k + 1)),
    "muon": lambda model, k: torch.optim.Muon(
        [p for p in model.parameters() if p.dim() == 2], lr=0.01 * (k + 1)
    ),
}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.linear = nn.Linear(4, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.table(ids).tanh())


def stack_of(name: str, seed: int = 0, clip: float | Sequence[float] | None = None) -> Stack:
    models: list[nn.Module] = []
    optimizers: list[Optimizer] = []
    for k in range(MEMBERS):
        torch.manual_seed(10 * seed + k)
        models.append(Small())
        optimizers.append(OPTIMIZERS[name](models[-1], k))
    return Stack(models, optimizers, clip=clip)


def batch_of(seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 20, (MEMBERS, 3, 5), generator=torch.Generator().manual_seed(seed))
    return x, x.roll(1, -1)


@pytest.mark.parametrize("clip", [None, 0.1, (0.1, 10.0, 0.01)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_traced_step_is_the_step_of_the_stack(name, clip):
    stack = stack_of(name, clip=clip)
    expected = stack_of(name, clip=clip)
    step = TracedStep(stack, batch_of(0))
    stack.load(expected.state())
    for seed, factor in enumerate([1.0, 0.5, 0.25]):
        with expected.optimizer.elementary_updates():
            losses = expected.step(batch_of(seed), factor=factor)
        assert torch.equal(step(batch_of(seed), factor), losses)
    for key, x in expected.state().items():
        assert torch.equal(stack.state()[key], x), key


def test_the_operations_hold_no_tensors_of_the_stack():
    step = TracedStep(stack_of("adamw"), batch_of(0))
    assert not [node for node in step.operations.graph.nodes if node.op == "get_attr"]
    assert not list(step.operations.buffers())


def test_members_are_clipped_by_their_norms():
    clips = [0.1, 10.0, 0.01]
    stack = stack_of("sgd", clip=clips)
    x, y = batch_of(0)
    stack.step((x, y))
    for k, clip in enumerate(clips):
        torch.manual_seed(k)
        model = Small()
        optimizer = OPTIMIZERS["sgd"](model, k)
        nn.functional.cross_entropy(model(x[k]).flatten(0, 1), y[k].flatten()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        assert (float(norm) > clip) == (k != 1)
        optimizer.step()
        for name, p in model.named_parameters():
            assert torch.allclose(stack.parameters[name][k], p, rtol=1e-6, atol=1e-8)
    stack.keep([2])
    assert stack.clip is not None
    assert stack.clip.tolist() == [0.01]


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_coefficients_are_not_computed_for_every_entry(name):
    """A compiler would put the powers of betas, in double precision, into every update kernel."""
    stack = stack_of(name)
    nodes = TracedStep(stack, batch_of(0)).operations.graph.nodes
    most = 20 * stack.optimizer.t.numel()  # coefficients
    reached = {node for node in nodes if node.target is torch.ops.aten.pow.Tensor_Tensor}
    assert reached
    stopped = False
    for node in nodes:  # in the order of their use
        if reached.isdisjoint(node.all_input_nodes):
            continue
        if node.target is torch.ops.orderone.computed_once.default:
            stopped = True
            continue
        reached.add(node)
        assert node.meta["val"].numel() <= most, node.format_node()
    assert stopped


def test_traced_updates_keep_the_shapes_of_tensors():
    """Views of other shapes would split the kernel that a compiler makes of an update."""
    stack = stack_of("adamw")
    step = TracedStep(stack, batch_of(0))
    inputs = [node for node in step.operations.graph.nodes if node.op == "placeholder"]
    updated = {id(x) for state in stack.optimizer.states.values() for x in state.values()}
    checked = 0
    for node, x in zip(inputs, stack.state().values(), strict=False):
        if id(x) in updated:
            checked += 1
            shapes = {tuple(user.meta["val"].shape) for user in node.users}
            assert shapes == {tuple(x.shape)}
    assert checked == 2 * len(stack.optimizer.parameters)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_stacks_with_other_settings_share_a_program(name, monkeypatch):
    compiled: list[object] = []

    def compile_graph(operations, inputs, options):
        compiled.append(operations)
        return operations

    monkeypatch.setattr(compiling, "compile_graph", compile_graph)
    compiling.forget_programs()
    for seed in range(2):
        stack = stack_of(name, seed, clip=0.5 + seed)
        for settings in stack.optimizer.settings.values():
            settings["lr"].mul_(seed + 1)
        expected = stack_of(name, seed, clip=0.5 + seed)
        for settings in expected.optimizer.settings.values():
            settings["lr"].mul_(seed + 1)
        expected.optimizer._gather()
        stack.optimizer._gather()
        step = CompiledStep(stack, batch_of(0))
        assert step.compiled
        for number in range(2):
            losses = expected.step(batch_of(number), factor=0.5)
            assert torch.allclose(step(batch_of(number), factor=0.5), losses, rtol=1e-5)
    assert len(compiled) == 1
    compiling.forget_programs()


class Counts(nn.Module):
    """Model that changes in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.linear(x) * self.passes


def test_a_model_that_changes_is_not_compiled():
    models = [Counts() for _ in range(2)]
    stack = Stack(models, [torch.optim.SGD(m.parameters(), lr=0.1) for m in models])
    batch = (torch.randn(2, 5, 4), torch.randint(3, (2, 5)))
    before = {name: x.clone() for name, x in stack.state().items()}
    with pytest.raises(NotCapturable):
        CompiledStep(stack, batch)
    assert all(torch.equal(x, before[name]) for name, x in stack.state().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_compiled_steps(name):
    """The compiler runs: losses are those of the stack within rounding."""
    stack = stack_of(name)
    expected = copy.deepcopy(stack)
    step = CompiledStep(stack, batch_of(0))
    assert step.compiled, step.compile_error
    for seed in range(5):
        losses = expected.step(batch_of(seed))
        assert torch.allclose(step(batch_of(seed)), losses, rtol=64 * torch.finfo().eps)
    for key, x in expected.state().items():
        assert torch.allclose(stack.state()[key], x, rtol=1e-3, atol=1e-6), key


@pytest.mark.slow
def test_programs_are_found_on_disk(tmp_path, monkeypatch):
    """The compiler keeps programs in a folder, and the next process takes them from there."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found: list[int] = []
    for _ in range(2):
        compiling.forget_programs()
        counters.clear()
        step = CompiledStep(stack_of("sgd"), batch_of(0))
        assert step.compiled, step.compile_error
        found.append(counters["inductor"]["fxgraph_cache_hit"])
    assert found == [0, 1]
    compiling.forget_programs()
