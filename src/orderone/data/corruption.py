"""Corruption of sentences after BART (Lewis et al. 2020), as in section II.2.A of S2.

S2 is the paper "Effective Theory of Transformers at Initialization". Sentences are permuted; then
some spans of tokens are replaced by one mask each.

M = round(ratio n) of the n tokens are removed, in spans whose lengths are Poisson draws. The last
span is shortened so that the total is exactly M. The result has n - M + S places, of which S are
masks; all choices of these S places are equally likely. A span of length zero inserts a mask and
removes nothing. There are at most M spans.

    places                   x  x  [mask]  x  [mask] ...
    tokens of a place        1 token of the text, or all tokens of its span
    first token of a place   the number of tokens of all places before it
"""

from math import exp, factorial

import torch
from torch import Tensor

from orderone.data.draws import Draws

_LONGEST = 40  # longest span; for Poisson(3), longer ones have a probability below 1e-28


def permute(tokens: Tensor, sentence: Tensor, length: Tensor, keys: Tensor) -> Tensor:
    """Return the sentences in the order of their keys.

    The arguments are tokens (n, L), the number of each token's sentence (n, L), and keys (n,
    sentences). Tokens beyond `length` (n,) remain at the end.
    """
    order = keys.gather(1, sentence)
    beyond = torch.arange(tokens.shape[1], device=tokens.device) >= length[:, None]
    order = order.masked_fill(beyond, 2.0)
    return tokens.gather(1, order.argsort(dim=1, stable=True))


def spans(length: Tensor, chances: Tensor, ratio: float, mean: float) -> tuple[Tensor, Tensor]:
    """Return the lengths of spans (n, most), and a mask of the spans that exist.

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
    """Return the text with each span replaced by one `mask`, (n, L), and its new length, (n,).

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
    """Return texts (seeds * batch, L), permuted and with masked spans, and their new lengths."""
    rows = len(tokens) // len(draws.keys)
    longest = tokens.shape[1]
    most_spans = max(1, round(ratio * longest) + 1)
    sentence_keys = draws.uniform("sentences", rows, longest).flatten(0, 1)
    span_chances = draws.uniform("spans", rows, most_spans).flatten(0, 1)
    mask_keys = draws.uniform("masks", rows, longest).flatten(0, 1)
    permuted = permute(tokens, sentence, length, sentence_keys)
    lengths, there = spans(length, span_chances, ratio, mean)
    return infill(permuted, length, lengths, there, mask_keys, mask)
