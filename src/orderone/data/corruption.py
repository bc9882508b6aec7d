"""Corruption of sentences, after BART (Lewis et al. 2020), S2 II.2.A: permuted, then spans replaced
by a mask each.

Of n tokens, M = round(ratio n) disappear, in spans whose lengths are Poisson draws; the last is cut
to make M exactly. The S spans stand anywhere between and beside the n - M tokens that are left: of
the n - M + S places, S are masks, every choice alike. A span of length zero is a mask that was put
in. There are no more spans than M.

    places    x  x  [mask]  x  [mask] ...         what a place takes from the text: 1, or the length
                                                  of its span
    token of a place = the sum of what the places before it take
"""

from math import exp, factorial

import torch
from torch import Tensor

from orderone.data.draws import Draws

_LONGEST = 40  # of a span; beyond it, Poisson(3) has a chance below 1e-28


def permute(tokens: Tensor, sentence: Tensor, length: Tensor, keys: Tensor) -> Tensor:
    """Sentences in the order of their keys: tokens (n, L), the number of each token's sentence (n,
    L), keys (n, sentences). What lies beyond `length` (n,) stays behind."""
    order = keys.gather(1, sentence)
    order = order.masked_fill(
        torch.arange(tokens.shape[1], device=tokens.device) >= length[:, None], 2.0
    )
    return tokens.gather(1, order.argsort(dim=1, stable=True))


def spans(length: Tensor, chances: Tensor, ratio: float, mean: float) -> tuple[Tensor, Tensor]:
    """For texts of `length` (n,) tokens the lengths of their spans (n, most), and whether there is
    such a span; `chances` are uniform numbers (n, most)."""
    table = torch.tensor(
        [exp(-mean) * mean**k / factorial(k) for k in range(_LONGEST)], dtype=torch.float64
    ).cumsum(0)
    drawn = torch.searchsorted(table.float().to(chances.device), chances, right=True)
    goal = (ratio * length.double()).round().long()[:, None]
    before = drawn.cumsum(1) - drawn
    there = (before < goal) & (torch.arange(chances.shape[1], device=chances.device) < goal)
    return torch.minimum(drawn, (goal - before).clamp_min(0)) * there, there


def infill(
    tokens: Tensor, length: Tensor, lengths: Tensor, there: Tensor, keys: Tensor, mask: int
) -> tuple[Tensor, Tensor]:
    """The text with each span replaced by one `mask`, (n, L), and how long it is now, (n,); `keys`
    are (n, L) random."""
    number = there.sum(1)
    after = length - lengths.sum(1) + number
    places = torch.arange(tokens.shape[1], device=tokens.device)
    keys = keys.masked_fill(places >= after[:, None], 2.0)
    rank = keys.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    masked = rank < number[:, None]
    which = (masked.cumsum(1) - 1).clamp(0, lengths.shape[1] - 1)
    takes = torch.where(masked, lengths.gather(1, which), 1)
    source = (takes.cumsum(1) - takes).clamp_max(tokens.shape[1] - 1)
    return torch.where(masked, mask, tokens.gather(1, source)), after


def most_spans(longest: int, ratio: float) -> int:
    return max(1, round(ratio * longest) + 1)


def corrupt(
    tokens: Tensor,
    sentence: Tensor,
    length: Tensor,
    draws: Draws,
    ratio: float,
    mean: float,
    mask: int,
) -> tuple[Tensor, Tensor]:
    """Texts (seeds * batch, L) of `length` tokens, permuted and with spans masked, and how long
    they are now."""
    rows = len(tokens) // len(draws.keys)
    longest = tokens.shape[1]
    tokens = permute(
        tokens, sentence, length, draws.uniform("sentences", rows, longest).flatten(0, 1)
    )
    chances = draws.uniform("spans", rows, most_spans(longest, ratio)).flatten(0, 1)
    lengths, there = spans(length, chances, ratio, mean)
    return infill(
        tokens, length, lengths, there, draws.uniform("masks", rows, longest).flatten(0, 1), mask
    )
