"""Bigram language model of S0: the smallest network in which every width exponent matters.

    h_0       = one-hot token                                                    S0 (1)
    h_{l+1}   = n^{-a_l} W_l h_l     for l = 0 ... L+1
    Var(W_l)  = n^{-2 b_l}

W_0 is n x V (embedding), W_1 ... W_L are n x n, W_{L+1} is V x n (readout). With `norm`, RMSNorm
without gain follows every layer but the last (S0 Lemma D.3). With an `activation`, it follows W_0
... W_L (S0 appendix C). `tied` uses W_0^T as W_{L+1}.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name
from orderone.theory.exponents import Parameterization
from orderone.theory.exponents.parameterization import Rule, layer_roles, read_rule


def linear(u: Tensor) -> Tensor:
    return u


def relu(u: Tensor) -> Tensor:
    return 2**0.5 * torch.relu(u)  # the gain keeps the second moment


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": linear,
    "relu": relu,
    "tanh": torch.tanh,
}


class Bigram(nn.Module):
    """A linear network from tokens to logits, with the multipliers and initial sizes of `p`.

    The optimizer takes the learning rates of `p` from `learning_rates`.
    """

    roles: list[str]  # one for each of W_0 ... W_{L+1}
    weight_roles: list[str]  # one for each of `weights`; a tied readout has no tensor
    weights: nn.ParameterList
    multipliers: list[float]
    activation: Callable[[Tensor], Tensor]
    norm: bool
    tied: bool

    def __init__(
        self,
        p: Rule,
        width: Count,
        depth: Count = 3,
        vocab: Count = 10,
        *,
        norm: bool = False,
        tied: bool = False,
        activation: Name = "linear",
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        p = read_rule(p)
        width = count(width, "width")
        vocab = count(vocab, "vocab", least=2)
        if tied and p.b["embedding"] != p.b["readout"]:
            raise InputError(
                f"tied: expected a rule with equal initial sizes of embedding and readout, which"
                f" are one tensor; {p.name} has n^-({p.b['embedding']}) and"
                f" n^-({p.b['readout']}); use another rule, or a gauge in which the two agree",
                "tied-sizes-differ",
                argument="tied",
            )
        self.roles = layer_roles(depth)
        self.norm = norm
        self.tied = tied
        self.activation = ACTIVATIONS[one_of(activation, ACTIVATIONS, "activation")]
        self.multipliers = [float(width) ** -float(p.a[role]) for role in self.roles]
        self.weight_roles = self.roles
        if tied:
            self.weight_roles = self.roles[:-1]
        widths = [vocab, *[width] * (depth + 1), vocab]
        self.weights = nn.ParameterList()
        for layer, role in enumerate(self.weight_roles):
            shape = (widths[layer + 1], widths[layer])
            std = float(width) ** -float(p.b[role])
            draw = torch.randn(shape, generator=generator, dtype=dtype).to(device)
            self.weights.append(std * draw)

    def matrices(self) -> list[Tensor]:
        """Return W_0 ... W_{L+1}."""
        if self.tied:
            return [*self.weights, self.weights[0].T]
        return list(self.weights)

    def activations(self, tokens: Tensor) -> list[Tensor]:
        """Return h_1 ... h_{L+2} for a batch of tokens, one row each; the last are the logits."""
        embedding, *hidden, readout = self.matrices()
        states = [self._finish(self.multipliers[0] * embedding.T[tokens])]
        for multiplier, weight in zip(self.multipliers[1:-1], hidden, strict=True):
            states.append(self._finish(multiplier * (states[-1] @ weight.T)))
        states.append(self.multipliers[-1] * (states[-1] @ readout.T))
        return states

    def forward(self, tokens: Tensor) -> Tensor:
        return self.activations(tokens)[-1]

    def _finish(self, u: Tensor) -> Tensor:
        h = self.activation(u)
        if self.norm:
            return h / h.pow(2).mean(-1, keepdim=True).sqrt()
        return h


def learning_rates(model: Bigram, p: Parameterization, width: int, scale: float) -> list[float]:
    """Return eta_l = scale n^{-c_l} for every weight tensor: S0 (11)."""
    return [scale * float(width) ** -float(p.c[role]) for role in model.weight_roles]
