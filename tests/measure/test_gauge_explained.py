"""A size that is not of order one and passes: the check says why."""

import torch
from torch import nn

import orderone as o1


class Tied(nn.Module):
    """A small text model whose readout is the embedding."""

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.hidden = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(torch.relu(self.hidden(self.embed(tokens)))))


def test_the_gauge_of_a_tied_readout_is_explained():
    tokens = torch.arange(32).reshape(4, 8) % 16
    r = o1.coord_check(
        Tied,
        widths=[16, 32, 64],
        lr=1e-2,
        batches=(tokens, tokens),
        loss=lambda logits, targets: nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        ),
        steps=1,
        seeds=1,
    )
    rows = r.exponents
    norm = rows[(rows["module"] == "norm") & (rows["quantity"] == "output")].iloc[0]
    assert norm["predicted"] == -1
    assert norm["verdict"] == "PASS"
    assert "norm.weight (gauge)" in norm["cause"]
    assert norm["cause"] in " ".join(str(r).split())

    readout = rows[(rows["module"] == "head") & (rows["quantity"] == "input")].iloc[0]
    assert readout["predicted"] == -1  # the multiplier comes before the readout
    assert readout["verdict"] == "PASS"

    others = rows[(rows["verdict"] == "PASS") & (rows["module"] == "hidden")]
    assert list(others["cause"]) == [""] * len(others)
    assert "\n" not in repr(r)
    assert "norm.weight (gauge)" in r._repr_html_()


class Normalized(nn.Module):
    """A model that normalizes to length one, and multiplies by the root of the width later."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.inner = nn.Linear(width, width)
        self.hidden = nn.Linear(width, width)
        self.last = nn.Linear(width, 3)
        self.scale = width**0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.inner(nn.functional.gelu(self.first(x))))
        x = nn.functional.normalize(x, dim=-1)
        return self.last(nn.functional.gelu(self.hidden(x) * self.scale))


def test_the_gauge_of_a_constant_in_the_forward_code_is_explained_with_a_finite_power():
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    batches = (x, x[:, :3].argmax(1))
    r = o1.coord_check(Normalized, widths=[32, 64, 128], lr=1e-2, batches=batches, steps=1)
    causes = [line.cause for line in r.judgements if "hidden.weight (gauge)" in line.cause]
    assert causes
    assert not any("inf" in cause for cause in causes)


def test_powers_of_almost_zero_need_no_explanation():
    class Normalized(nn.Module):
        """The plan compensates the division by the length; what remains is rounding."""

        def __init__(self, width: int):
            super().__init__()
            self.first = nn.Linear(16, width)
            self.hidden = nn.Linear(width, width)
            self.last = nn.Linear(width, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.normalize(torch.relu(self.first(x)), dim=-1)
            return self.last(torch.relu(self.hidden(x * 1.0)))

    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    batch = (x, torch.arange(16) % 8)
    r = o1.coord_check(Normalized, [32, 64, 128], lr=1e-2, batches=batch, seeds=1)
    outputs = [line for line in r.judgements if line.module == "hidden"]
    outputs = [line for line in outputs if line.quantity == "output"]
    assert [line.cause for line in outputs if "(gauge)" in line.cause] == []
