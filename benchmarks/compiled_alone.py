"""Passes of one model, uncompiled and compiled, as a sweep chooses for what it cannot stack.

    python benchmarks/compiled_alone.py [cuda]

For each model: seconds of the compiler, milliseconds of a forward and a backward pass, and the
decision of a sweep that was asked to compile. `deciding` reads values in every block, so that it
can neither be stacked nor captured. On a CPU with one thread, times are CPU time.
"""

import sys
import time

import torch
from torch import nn

from orderone.training import compiled_pass
from orderone.training.schedule import schedule
from orderone.training.settings import Settings
from orderone.training.source import Source
from orderone.training.step import Step, current_rates
from orderone.training.world import single_process

INPUTS, CLASSES, TOKENS, VOCAB = 32, 8, 64, 256


class Deciding(nn.Module):
    """Residual MLP that leaves a block out if its input is too large."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.blocks = nn.ModuleList([block(width) for _ in range(6)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for part in self.blocks:
            x = self.step(part, x)
        return self.head(x)

    def step(self, part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = part(x)
        if float(y.detach().square().mean()) < 1e3:
            return x + y
        return x


def block(width: int) -> nn.Module:
    layers = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
    return nn.Sequential(*layers, nn.Linear(4 * width, width))


class Transformer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(4)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x)).mean(1))


def mlp(width: int) -> nn.Module:
    hidden = (nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def step_of(model: nn.Module, batch: object, device: torch.device) -> Step:
    factor = schedule("constant", 100, 0)
    settings = Settings(100, factor, 1, None, "float32", None, 10, 60.0)
    optimizer = torch.optim.AdamW(model.parameters())
    source = Source("one batch", lambda step, seed: batch, list)
    world = single_process(device)
    rates = current_rates(optimizer)
    return Step(world, settings, model, model, optimizer, rates, source, 0, None)


def main(device: torch.device) -> None:
    if device.type == "cpu":
        torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {device}\n")
    print("| model | width | compiler s | uncompiled ms | compiled ms | faster | decision |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    compiled_pass.LIMIT = 600.0  # a loaded machine may need longer than a study would wait
    vectors, ids = torch.randn(64, INPUTS), torch.randint(VOCAB, (8, TOKENS))
    cases = [(mlp, 64, vectors), (Deciding, 64, vectors), (Deciding, 256, vectors)]
    cases += [(Transformer, 64, ids), (Transformer, 128, ids)]
    for build, width, x in cases:
        torch.manual_seed(0)
        batch = (x, torch.randint(CLASSES, (len(x),)))
        step = step_of(build(width).to(device), batch, device)
        trial = compiled_pass._Trial(step, compiled_pass.moved(batch, device, "float32"))
        compiled = compiled_pass.compiled_forward(step.forward)
        started = time.monotonic()
        trial.settles(compiled)
        spent = time.monotonic() - started
        before, after = trial.seconds(None), trial.seconds(compiled)
        decision = compiled_pass.decide(step, batch, 1, asked=True)
        cells = [build.__name__.lower(), width, f"{spent:.0f}", f"{1e3 * before:.2f}"]
        cells += [f"{1e3 * after:.2f}", f"{before / after:.2f}x", decision.reason.split(" in ")[0]]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main(torch.device("cuda" if "cuda" in sys.argv[1:] else "cpu"))
