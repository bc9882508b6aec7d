"""Transformer of infinite width: kernels and tangent kernels, block by block. S2, Part I.

Errata S2.1-S2.6 are taken into account.

    stem -> (norm -> branch, + skip) for each letter of `blocks` -> norm -> head

A is attention, M an MLP, G a gated MLP, and C attention to a memory, as in a decoder. With
`placement="post"` the norm is after the sum, as in BERT. Everything is to leading
order in 1/n and, by erratum S2.5, in 1/H: with finitely many heads the kernels fluctuate by
`Prediction.head_std`.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from orderone.core.errors import InputError, instance, one_of
from orderone.core.exact import count
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import Array, ArrayLike, Count, Flag, Name, Number
from orderone.core.reals import real
from orderone.theory import activations
from orderone.theory.transformer.few_heads import FewHeads, draw_heads
from orderone.theory.transformer.groups import read_constants, read_rates, relative_rates
from orderone.theory.transformer.heads import HEADS, POOLS
from orderone.theory.transformer.inputs import ActivationInput, ConstantsInput, MaskInput
from orderone.theory.transformer.passing import Memory, MemoryInput, embedded, run
from orderone.theory.transformer.positional import AttentionMap, Rotary
from orderone.theory.transformer.prediction import Prediction
from orderone.theory.transformer.stems import STEMS, embed
from orderone.theory.transformer.tied import TiedContact, contact
from orderone.theory.transformer.tokens import read
from orderone.theory.transformer.views import read_mask
from orderone.theory.transformer.weights import Weights

LETTERS: dict[str, str] = {
    "A": "attention",
    "M": "MLP",
    "G": "gated MLP",
    "C": "attention to a memory",
}
PLACEMENTS = ("pre", "post")
NORMS = ("layer", "rms")  # both are the same for a stream of mean 0
ATTENTION = ("softmax", "shaped")
OPTIMIZERS = ("sgd", "adamw", "adam")


@dataclass(frozen=True, init=False)
class Transformer:
    """Transformer of infinite width, with `blocks` such as "AMAM".

    `C` are the constants of the initial variances of groups, by default 1 (PE: 1/4). `heads` and
    `width` are those of the network to compare with; kernels are those of infinitely many.
    `accuracy` is that of sampled attention averages, with at most 65536 points; up to three tokens
    need no sampling. `stem_norm` adds a norm after the embedding, as in BART. `mlp`, the width of
    the MLP divided by that of the stream, only affects `rates`. `norm_gain` is the root mean square
    of the gains of norms, S2 (1.10), and `skip_gain` that of skip paths, S2 (1.5). `placement` is
    "pre" or "post" for norms before a branch or after the sum; `qk_norm` normalizes queries and
    keys of each head. `rope` is the base of rotary positions in blocks A, such as 10000; heads have
    `width / heads` channels, or many. `attention="shaped"` adds the identity to the softmax and
    subtracts the uniform mean over keys; `temperature` divides scores (module `positional`).
    """

    blocks: str
    activation: activations.Activation
    C: Mapping[str, float]
    eps: float
    causal: bool
    heads: int | None
    width: int | None
    mlp: float
    norm: str
    stem: str
    stem_norm: bool
    head: str
    pool: str
    accuracy: float
    seed: int
    placement: str
    norm_gain: float
    skip_gain: float
    qk_norm: bool
    rope: float | None
    attention: str
    temperature: float

    def __init__(
        self,
        blocks: Name = "AM",
        activation: ActivationInput = "gelu",
        C: ConstantsInput = None,
        eps: Number = 1e-5,
        causal: Flag = False,
        heads: Count | None = None,
        width: Count | None = None,
        mlp: Number = 4,
        norm: Name = "layer",
        stem: Name = "vision",
        stem_norm: Flag = False,
        head: Name = "linear",
        pool: Name = "none",
        accuracy: Number = 5e-4,
        seed: Count = 0,
        placement: Name = "pre",
        norm_gain: Number = 1.0,
        skip_gain: Number = 1.0,
        qk_norm: Flag = False,
        rope: Number | None = None,
        attention: Name = "softmax",
        temperature: Number = 1.0,
    ):
        values = {
            "blocks": _read_blocks(blocks),
            "activation": activations.get(activation),
            "C": FrozenDict(read_constants(C)),
            "eps": real(eps, "eps", least=0),
            "causal": instance(causal, bool, "causal", "pass True or False"),
            "heads": None if heads is None else count(heads, "heads"),
            "width": None if width is None else count(width, "width"),
            "mlp": real(mlp, "mlp", above=0),
            "norm": one_of(norm, NORMS, "norm"),
            "stem": one_of(stem, STEMS, "stem"),
            "stem_norm": instance(stem_norm, bool, "stem_norm", "pass True or False"),
            "head": one_of(head, HEADS, "head"),
            "pool": one_of(pool, POOLS, "pool"),
            "accuracy": real(accuracy, "accuracy", above=0, most=1),
            "seed": count(seed, "seed", least=0),
            "placement": one_of(placement, PLACEMENTS, "placement"),
            "norm_gain": real(norm_gain, "norm_gain", above=0),
            "skip_gain": real(skip_gain, "skip_gain", least=0),
            "qk_norm": instance(qk_norm, bool, "qk_norm", "pass True or False"),
            "rope": None if rope is None else real(rope, "rope", above=1),
            "attention": one_of(attention, ATTENTION, "attention"),
            "temperature": real(temperature, "temperature", above=0),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        _check_sizes(self.width, self.heads)
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Raise an InputError if two settings cannot be used together."""
        if self.rope is not None and self.width and self.heads and self.width // self.heads % 2:
            raise InputError(
                "rope: expected heads with an even number of channels, got"
                f" {self.width // self.heads}; choose another number of heads",
                argument="rope",
            )
        if self.attention == "shaped" and "C" in self.blocks:
            raise InputError(
                "attention: expected 'softmax' with blocks C, where keys are not the queries, got"
                " 'shaped'",
                argument="attention",
            )
        if self.head == "tied" and self.stem != "language":
            raise InputError(
                "head: expected 'linear' with a vision stem, got 'tied'; pass stem='language'",
                argument="head",
            )

    def kernels(
        self,
        G0: ArrayLike,
        tokens: Count | None = None,
        mask: MaskInput = None,
        memory: MemoryInput = None,
    ) -> list[Array]:
        """Return G after the stem and after each block, in the shape of G0."""
        return self._pass(G0, tokens, mask, memory).kernels

    def output_kernel(
        self,
        G0: ArrayLike,
        tokens: Count | None = None,
        mask: MaskInput = None,
        memory: MemoryInput = None,
    ) -> Array:
        """Return G of the outputs, shaped like G0, or (sequences, sequences) with pooling."""
        return self._pass(G0, tokens, mask, memory).output

    def ntk(
        self,
        G0: ArrayLike,
        optimizer: Name = "sgd",
        rates: ConstantsInput = None,
        tokens: Count | None = None,
        mask: MaskInput = None,
        memory: MemoryInput = None,
    ) -> list[Array]:
        """Return Theta after the stem, after each block, and of the outputs.

        `rates` are the Lambda_G, of order one. With the factors of S2, SGD and AdamW have the same
        Theta: see `groups`.
        """
        one_of(optimizer, OPTIMIZERS, "optimizer")
        return self._pass(G0, tokens, mask, memory, rates=read_rates(rates), merged=True).ntk

    def predict(
        self,
        G0: ArrayLike,
        optimizer: Name = "sgd",
        rates: ConstantsInput = None,
        tokens: Count | None = None,
        mask: MaskInput = None,
        memory: MemoryInput = None,
    ) -> Prediction:
        """Return kernels, the tangent kernel of each group, errors, and the effect of few heads."""
        one_of(optimizer, OPTIMIZERS, "optimizer")
        return self._pass(G0, tokens, mask, memory, rates=read_rates(rates))

    def rates(
        self, strategy: Name, optimizer: Name = "adamw", n_in: Count = 768, n_out: Count = 1000
    ) -> dict[str, float]:
        """Return Lambda_G of a strategy of S2 at this width, as `rates` of the methods above."""
        if self.width is None:
            raise InputError(
                "width: expected a number, got None; pass Transformer(..., width=768)",
                argument="width",
            )
        return relative_rates(strategy, optimizer, self.width, n_in, n_out, self.mlp)

    def few_heads(
        self,
        G0: ArrayLike,
        samples: Count = 64,
        tokens: Count | None = None,
        mask: MaskInput = None,
    ) -> FewHeads:
        """Return statistics of G over `samples` wide networks with `heads` heads.

        They are the mean, the fluctuation, and the shift of the mean.
        """
        self._refuse_variants("few_heads")
        if self.heads is None or "C" in self.blocks or "G" in self.blocks:
            raise InputError(
                f"heads: expected a number of heads and only blocks A and M, got heads={self.heads}"
                f" and blocks={self.blocks!r}; pass Transformer(..., heads=12)",
                argument="heads",
            )
        matrix, place = read(G0, tokens)
        stem = embedded(self, matrix, place, Weights(self.C, {}))
        visible = read_mask(mask, stem.tokens, stem.tokens, self.causal)
        return draw_heads(
            self, stem, visible, self.heads, count(samples, "samples", least=4), self.seed
        )

    def tied_contact(
        self,
        G0: ArrayLike,
        rates: ConstantsInput = None,
        tokens: Count | None = None,
        mask: MaskInput = None,
    ) -> TiedContact:
        """Return the terms of a tied head for the outputs that are input words: see `tied`."""
        self._refuse_variants("tied_contact")
        if self.head != "tied":
            raise InputError(
                "head: expected 'tied', got 'linear'; pass Transformer(..., stem='language',"
                " head='tied')",
                argument="head",
            )
        matrix, place = read(G0, tokens)
        stem = embed(matrix, place, STEMS[self.stem], Weights(self.C, {}), self.pool == "class")
        last = self._pass(G0, tokens, mask, None).streams[-1]
        return contact(
            [stem, last], self.stem_norm, self.C["WE"], read_rates(rates)["WE"], self.eps
        )

    def memory(self, G0: ArrayLike, tokens: Count | None = None, mask: MaskInput = None) -> Memory:
        """Return the memory for blocks C of a decoder: the normalized output of this encoder."""
        if "C" in self.blocks:
            raise InputError(
                f"blocks: expected an encoder, with only blocks A and M, got {self.blocks!r};"
                " decoders cannot attend to a decoder",
                argument="blocks",
            )
        matrix, place = read(G0, tokens)
        return Memory(self, matrix, place, mask)

    def attention_map(self) -> AttentionMap:
        """Return the map from scores to attention of blocks A."""
        rotary = None
        if self.rope is not None:
            channels = None
            if self.width is not None and self.heads is not None:
                channels = self.width // self.heads
            rotary = Rotary(self.rope, channels)
        shaped = 1.0 if self.attention == "shaped" else 0.0
        return AttentionMap(rotary, identity=shaped, centre=shaped)

    def _refuse_variants(self, method: str) -> None:
        """Raise an InputError if a method does not know the settings of norms and gains."""
        variants = {
            "placement": self.placement != "pre",
            "norm_gain": self.norm_gain != 1,
            "skip_gain": self.skip_gain != 1,
            "qk_norm": self.qk_norm,
            "rope": self.rope is not None,
            "attention": self.attention != "softmax",
            "temperature": self.temperature != 1,
        }
        for name, used in variants.items():
            if used:
                raise InputError(
                    f"{name}: expected the default for {method}, got {getattr(self, name)!r};"
                    " kernels, ntk and predict accept it",
                    argument=name,
                )

    def _pass(
        self,
        G0: ArrayLike,
        tokens: Count | None,
        mask: MaskInput,
        memory: MemoryInput,
        rates: Mapping[str, float] | None = None,
        merged: bool = False,
    ) -> Prediction:
        matrix, place = read(G0, tokens)
        if memory is not None:
            instance(memory, Memory, "memory", "pass encoder.memory(G0)")
        if (memory is None) == ("C" in self.blocks):
            got = "a memory"
            remedy = "add blocks C, or omit memory"
            if memory is None:
                got = "None"
                remedy = "pass memory=encoder.memory(G0)"
            raise InputError(
                f"memory: expected a memory with blocks C, and None without; got {got} for the"
                f" blocks {self.blocks!r}; {remedy}",
                argument="memory",
            )
        return run(self, matrix, place, mask, memory, rates, merged)


def _read_blocks(blocks: Name) -> str:
    if isinstance(blocks, str):
        unknown = [letter for letter in blocks if letter not in LETTERS]
    else:
        unknown = [blocks]
    if unknown:
        meaning = ", ".join(f"{letter} ({word})" for letter, word in LETTERS.items())
        raise InputError(
            f"blocks: expected a word of the letters {meaning}; got {unknown[0]!r} in {blocks!r}",
            argument="blocks",
        )
    return blocks


def _check_sizes(width: int | None, heads: int | None) -> None:
    if width is not None and heads is not None and width % heads:
        below = next(h for h in range(min(heads, width), 0, -1) if width % h == 0)
        raise InputError(
            f"heads: expected a divisor of the width {width}, got {heads}; for example {below}"
            f" heads of {width // below} channels",
            argument="heads",
        )
