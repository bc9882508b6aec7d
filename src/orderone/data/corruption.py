"""Corruption of sentences, after BART (Lewis et al. 2020), S2 II.2.A.

Sentences are permuted, then each of some spans is replaced by one mask.

Of n tokens, M = round(ratio n) disappear, in spans whose lengths are Poisson draws; the last is cut
to make M exactly. The S spans stand anywhere between and beside the n - M tokens that are left: of
the n - M + S places, S are masks, every choice alike. A span of length zero is a mask that was put
in. There are no more spans than M.

    places                   x  x  [mask]  x  [mask] ...
    a place takes            1 token of the text, or those of its span
    first token of a place   the sum of what the places before it take
"""

from math import exp, factorial

import torch
from torch import Tensor

from orderone.data.draws import Draws

_LONGEST = 40  # of a span; beyond it, Poisson(3) has a chance below 1e-28


def permute(tokens: Tensor, sentence: Tensor, length: Tensor, keys: Tensor) -> Tensor:
    """Return the sentences in the order of their keys.

    The arguments are tokens (n, L), the number of each token's sentence (n, L), and keys (n,
    sentences). Tokens beyond `length` (n,) stay behind.
    """
    order = keys.gather(1, sentence)
    beyond = torch.arange(tokens.shape[1], device=tokens.device) >= length[:, None]
    order = order.masked_fill(beyond, 2.0)
    return tokens.gather(1, order.argsort(dim=1, stable=True))


def spans(length: Tensor, chances: Tensor, ratio: float, mean: float) -> tuple[Tensor, Tensor]:
    """Return the lengths of spans (n, most), and whether there is such a span.

    The texts have `length` (n,) tokens; `chances` are uniform numbers (n, most).
    """
    poisson = [exp(-mean) * mean**k / factorial(k) for k in range(_LONGEST)]
    table = torch.tensor(poisson, dtype=torch.float64).cumsum(0)
    drawn = torch.searchsorted(table.float().to(chances.device), chances, right=True)
    goal = (ratio * length.double()).round().long()[:, None]
    before = drawn.cumsum(1) - drawn
    there = (before < goal) & (torch.arange(chances.shape[1], device=chances.device) < goal)
    return torch.minimum(drawn, (goal - before).clamp_min(0)) * there, there


def infill(
    tokens: Tensor, length: Tensor, lengths: Tensor, there: Tensor, keys: Tensor, mask: int
) -> tuple[Tensor, Tensor]:
    """Return the text with each span replaced by one `mask`, (n, L), and its length now, (n,).

    `keys` are (n, L) random numbers.
    """
    number = there.sum(1)
    after = length - lengths.sum(1) + number
    places = torch.arange(tokens.shape[1], device=tokens.device)
    keys = keys.masked_fill(places >= after[:, None], 2.0)
    rank = keys.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    masked = rank < number[:, None]
    span = (masked.cumsum(1) - 1).clamp(0, lengths.shape[1] - 1)
    takes = torch.where(masked, lengths.gather(1, span), 1)
    source = (takes.cumsum(1) - takes).clamp_max(tokens.shape[1] - 1)
    return torch.where(masked, mask, tokens.gather(1, source)), after


def corrupt(
    tokens: Tensor,
    sentence: Tensor,
    length: Tensor,
    draws: Draws,
    ratio: float,
    mean: float,
    mask: int,
) -> tuple[Tensor, Tensor]:
    """Return texts (seeds * batch, L), permuted and with spans masked, and their lengths now."""
    rows = len(tokens) // len(draws.keys)
    longest = tokens.shape[1]
    most_spans = max(1, round(ratio * longest) + 1)
    sentence_keys = draws.uniform("sentences", rows, longest).flatten(0, 1)
    span_chances = draws.uniform("spans", rows, most_spans).flatten(0, 1)
    mask_keys = draws.uniform("masks", rows, longest).flatten(0, 1)
    permuted = permute(tokens, sentence, length, sentence_keys)
    lengths, there = spans(length, span_chances, ratio, mean)
    return infill(permuted, length, lengths, there, mask_keys, mask)
