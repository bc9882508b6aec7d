"""Conventions for the learning rate of Muon, and conversions between them.

Muon steps along U V^T, whose singular values are one. Implementations multiply lr by a factor of
the shape, so that a rate from one program is wrong in another. With fan-out o and fan-in i:

    original          sqrt(max(1, o / i))    Jordan et al. 2024; torch's default; shape_scaling in
                                             Megatron-LM
    match_rms_adamw   0.2 sqrt(max(o, i))    Liu et al. 2025 (Moonshot, arXiv:2502.16982); torch;
                                             rms_norm in Dion's package; spectral, with the extra
                                             factor 0.2, in Megatron-LM
    spectral          sqrt(o / i)            Bernstein, "Deriving Muon"; spectral_norm in Dion's
                                             package; unit_rms_norm in Megatron-LM
    none              1

A step changes a matrix by lr times the factor times U V^T, and this product is what two conventions
must share. U V^T of full rank has entries of the size 1 / sqrt(max(o, i)), so match_rms_adamw gives
steps the RMS 0.2 lr. Steps of AdamW have about the same RMS in language models (0.2 to 0.4, Liu et
al., section 2.2). Its learning rate is therefore that of match_rms_adamw.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Name, Number, UserInput
from orderone.core.reals import real

ADAMW_RMS = 0.2  # RMS of AdamW's steps divided by lr
ADAMW = "adamw"

MatrixShape: TypeAlias = Annotated[Sequence[int], UserInput]


def _original(out: int, into: int) -> float:
    return math.sqrt(max(1.0, out / into))


def _match_rms_adamw(out: int, into: int) -> float:
    return ADAMW_RMS * math.sqrt(max(out, into))


def _spectral(out: int, into: int) -> float:
    return math.sqrt(out / into)


def _none(out: int, into: int) -> float:
    return 1.0


MUON_CONVENTIONS: dict[str, Callable[[int, int], float]] = {
    "original": _original,
    "match_rms_adamw": _match_rms_adamw,
    "spectral": _spectral,
    "none": _none,
}
# names that other programs use, without those that mean different factors in different programs
_ALIASES = {
    "moonshot": "match_rms_adamw",
    "rms_norm": "match_rms_adamw",
    "shape_scaling": "original",
    "spectral_norm": "spectral",
    "unit_rms_norm": "spectral",
}


def convention_name(convention: str | None, argument: str = "convention") -> str:
    """Return the name of a convention in `MUON_CONVENTIONS`; None is torch's default."""
    if convention is None:
        return "original"
    name = _ALIASES.get(str(convention).lower(), convention)
    return one_of(name, MUON_CONVENTIONS, argument)


def muon_factor(shape: MatrixShape, convention: Name | None = "original") -> float:
    """Return the factor by which a convention multiplies lr for a matrix of this shape.

    Args:
        shape: Fan-out and fan-in, as in `nn.Linear.weight.shape`. Axes before the last two count
            separate matrices, such as experts.
        convention: "original", "match_rms_adamw", "spectral" or "none", or one of the names
            moonshot and rms_norm (match_rms_adamw), shape_scaling (original), spectral_norm and
            unit_rms_norm (spectral).
    """
    factor = MUON_CONVENTIONS[convention_name(convention)]
    if not isinstance(shape, Sequence) or len(shape) < 2:
        raise InputError(
            f"shape: expected the shape of a matrix, such as (1024, 256), got {shape!r:.60}",
            argument="shape",
        )
    out, into = (count(size, "shape") for size in shape[-2:])
    return factor(out, into)


def convert_muon_lr(
    lr: Number,
    shape: MatrixShape,
    source: Name,
    target: Name,
    *,
    adamw_rms: Number = ADAMW_RMS,
) -> float:
    """Return the rate in the convention `target` that takes the same steps as `lr` in `source`.

    Weight decay shrinks weights by lr times weight_decay in all conventions: to keep it, divide
    weight_decay by the factor by which lr has changed.

    Args:
        lr: Learning rate in the convention `source`.
        shape: Fan-out and fan-in of the matrix, see `muon_factor`.
        source: Convention of `lr`, one of `muon_factor`, or "adamw": the rate of AdamW whose steps
            have the same RMS.
        target: Convention of the result, one of the same names.
        adamw_rms: RMS of AdamW's steps divided by its rate, for "adamw". It is 1 for steps that all
            have the same sign (and for Lion), and 0.2 to 0.4 in the training of language models.
    """
    rate = real(lr, "lr", above=0)
    rms = real(adamw_rms, "adamw_rms", above=0)
    return rate * _factor(shape, source, rms, "source") / _factor(shape, target, rms, "target")


def _factor(shape: MatrixShape, convention: Name, adamw_rms: float, argument: str) -> float:
    name = _ALIASES.get(str(convention).lower(), convention)
    name = one_of(name, (*MUON_CONVENTIONS, ADAMW), argument)
    if name == ADAMW:
        return adamw_rms / ADAMW_RMS * muon_factor(shape, "match_rms_adamw")
    return muon_factor(shape, name)
