"""Correlations due to a tied head, against tied networks of finite width."""

import pytest
import torch

from orderone import theory
from orderone.theory.transformer import words

N, VOCAB, SAMPLES = 256, 6, 200
IDS = (0, 1)  # words of two tokens


def outputs(
    table: torch.Tensor, positions: torch.Tensor, W: torch.Tensor, X: torch.Tensor, stem_norm: bool
):
    """Stem, MLP block and tied head, for both tokens: (2, vocab)."""
    z = table[:, list(IDS)].T + positions
    if stem_norm:
        z = torch.nn.functional.layer_norm(z, (N,), eps=0.1)
    s = torch.nn.functional.layer_norm(z, (N,), eps=0.1)
    z = z + torch.relu(s @ W.T) @ X.T
    return torch.nn.functional.layer_norm(z, (N,), eps=0.1) @ table / N**0.5


@pytest.mark.parametrize("stem_norm", [False, True])
def test_contact_terms_of_a_tied_head(stem_norm):
    generator, C = torch.Generator().manual_seed(0), {"WE": 0.5, "PE": 0.25}
    kernel, cross, other = torch.zeros(2, 2), torch.zeros(()), torch.zeros(())
    for _ in range(SAMPLES):
        draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        table, positions = C["WE"] ** 0.5 * draw(N, VOCAB), C["PE"] ** 0.5 * draw(2, N)
        settings = (positions, draw(N, N) / N**0.5, draw(N, N) / N**0.5, stem_norm)
        jacobian = torch.func.jacrev(lambda t, s=settings: outputs(t, *s))(table)
        out = outputs(table, *settings)
        own = out[[0, 1], list(IDS)]  # what each token says of itself
        kernel += own[:, None] * own / SAMPLES
        cross += (
            jacobian[0, 1] * jacobian[1, 0]
        ).sum() / SAMPLES  # output 1 of word 0, and output 0 of word 1
        other += (jacobian[0, 4] * jacobian[1, 5]).sum() / SAMPLES  # words that do not occur
    t = theory.Transformer(
        "M", "relu", C, eps=0.1, stem="language", head="tied", stem_norm=stem_norm
    )
    found, naive = t.tied_contact(words(IDS)), t.output_kernel(words(IDS))
    assert kernel[0, 1].item() == pytest.approx(N * found.kernel[0, 1], rel=0.03)
    assert kernel[0, 0].item() == pytest.approx(N * found.kernel[0, 0] + naive[0, 0], rel=0.03)
    assert cross.item() == pytest.approx(found.ntk[0, 1], rel=0.06)
    assert abs(other.item()) < 0.05
