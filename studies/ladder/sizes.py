"""Sizes and grids of the ladder."""

from dataclasses import dataclass

from studies.llama import llama_parameters

TOKENS_PER_PARAMETER = 20


@dataclass(frozen=True)
class Size:
    """A rung of the ladder."""

    name: str
    width: int
    layers: int
    batch: int  # sequences
    seconds: float  # estimate for one training on one H200, without compilation

    def parameters(self) -> int:
        return llama_parameters(self.width, self.layers)


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    tuned: tuple[Size, ...]  # the base first; the others are tuned around the best of the base
    compared: Size  # trained by every method, once per seed
    largest: Size  # trained with `full` only
    pilot: tuple[Size, ...] = ()  # tuned with `full`, and too small for the law: see the protocol
    length: int = 1024
    head: int = 64
    source: str = "linux"
    held_out: int = 576  # pieces of `length`: a multiple of all batch sizes, the same for all sizes
    rates: int = 7
    seeds: int = 3
    most_steps: int | None = None  # for the tiny version

    @property
    def base(self) -> Size:
        return self.tuned[0]

    @property
    def all(self) -> tuple[Size, ...]:
        return (*self.pilot, *self.tuned, self.compared, self.largest)

    def steps(self, size: Size) -> int:
        steps = round(TOKENS_PER_PARAMETER * size.parameters() / (size.batch * self.length))
        return steps if self.most_steps is None else min(steps, self.most_steps)

    def tokens(self, size: Size) -> int:
        return self.steps(size) * size.batch * self.length

    def flops(self, size: Size) -> float:
        """Return 6 x parameters x tokens, and the products of causal attention."""
        attention = 6 * size.layers * size.width * self.length
        return (6 * size.parameters() + attention) * float(self.tokens(size))


# Seconds of the tuned sizes are those of the records, per training of a stack; those of the larger
# ones follow from 1.5 and 0.97 million tokens a second of a compiled Llama.
FULL = Scale(
    pilot=(Size("0.7M", 128, 3, 8, 2.4), Size("1.5M", 192, 3, 12, 3.9)),
    tuned=(
        Size("2.7M", 256, 3, 16, 7.4),
        Size("5.5M", 320, 4, 24, 28),
        Size("9.8M", 384, 5, 32, 64),
    ),
    compared=Size("20.7M", 512, 6, 48, 280),
    largest=Size("37.6M", 640, 7, 64, 780),
)
TINY = Scale(
    tuned=(
        Size("base", 32, 1, 2, 1),
        Size("next", 48, 1, 3, 1),
        Size("third", 64, 1, 3, 1),
    ),
    compared=Size("compared", 64, 2, 4, 1),
    largest=Size("largest", 80, 2, 4, 1),
    length=16,
    head=16,
    source="python",
    held_out=12,
    rates=3,
    seeds=2,
    most_steps=6,
)
