"""Papers to cite for a name: a rule, optimizer, module, model, or a paper's table or figure."""

import re
from collections.abc import Iterable
from typing import Annotated, TypeAlias

from orderone.core.citations.citation import Citation
from orderone.core.citations.papers import ORDERONE, PAPERS, S0, S1, S2, S3
from orderone.core.errors import one_of
from orderone.core.inputs import Name, UserInput

Names: TypeAlias = Annotated[str | Iterable[str], UserInput]  # a name, or several

SEEDS = {"s0": S0, "s1": S1, "s2": S2, "s3": S3}
_S0 = S0.key
_S1 = S1.key
_S2 = S2.key
_S3 = S3.key
_EXPONENTS = (_S0, "everett2024scaling")
_TRANSFER = ("yang2020feature", "yang2022tensor")
_SHAPED = (_S3, "li2022neural", "martens2021rapid", "zhang2022deep")
_KERNELS = ("lee2017deep", "jacot2018neural")
USES: dict[str, tuple[str, ...]] = {
    "orderone": (),
    # rules, and how they scale depth
    "sp": _EXPONENTS,
    "ntk": ("jacot2018neural", *_EXPONENTS),
    "mup": (*_TRANSFER, *_EXPONENTS),
    "mf": ("mei2018mean", *_EXPONENTS),
    "standard": (_S2,),
    "neural-tangent": (_S2, "jacot2018neural"),
    "hybrid": (_S2,),
    "maximal-update": (_S2, *_TRANSFER),
    "depth-mup": ("yang2023depth",),
    "completep": ("dey2025completep",),
    # optimizers
    "sgd": (),
    "adam": ("kingma2014adam",),
    "adamw": ("loshchilov2017decoupled",),
    "sign": ("bernstein2018signsgd",),
    "adafactor": ("shazeer2018adafactor",),
    "muon": ("jordan2024muon", "liu2025muon"),
    "lion": ("chen2023symbolic",),
    "rmsprop": ("tieleman2012rmsprop",),
    "nadam": ("dozat2016incorporating",),
    "adagrad": ("duchi2011adaptive",),
    "ademamix": ("pagliardini2024ademamix",),
    "schedule-free": ("defazio2024road",),
    "adam8bit": ("dettmers2021optimizers",),
    "normuon": ("li2025normuon", "jordan2024muon"),
    "dion": ("ahn2025dion",),
    "soap": ("vyas2024soap", "qiu2025hyperparameter"),
    "shampoo": ("gupta2018shampoo", "qiu2025hyperparameter"),
    # modules
    "exponents": _EXPONENTS,
    "meanfield": (_S1, "poole2016exponential", "schoenholz2016deep"),
    "kernels": _KERNELS,
    "transformer": (_S2, *_KERNELS),
    "strategies": (_S2,),
    "first_pass": (_S0,),
    "finite_width": ("roberts2021principles", "pennington2017resurrecting"),
    "kernel_shaping": ("martens2021rapid", "zhang2022deep"),
    "limits": (_S3, "li2022neural", "hayou2023width"),
    "shaped": _SHAPED,
    "plan": (*_TRANSFER, "yang2023spectral"),
    "check": ("yang2022tensor",),
    "alignment": _EXPONENTS,
    "sweep": ("yang2022tensor",),
    # models
    "vit": ("dosovitskiy2020image",),
    "bart": ("lewis2019bart",),
    "r2c2": ("shuster2022language",),
}


def known() -> tuple[str, ...]:
    """Return every name to cite by.

    `cite` also accepts tables and figures such as s1-figure7, and strategies such as s=1/4.
    """
    return (*USES, *SEEDS)


def cite(names: Names = ()) -> list[Citation]:
    """Return the references for one name or several: each paper once, orderone first.

    Without names, return all references.
    """
    if isinstance(names, str):
        requested = [names]
    else:
        requested = list(names)
    if not requested:
        return list(dict.fromkeys((ORDERONE, *PAPERS.values())))
    papers = [ORDERONE]
    for name in requested:
        papers.extend(PAPERS[key] for key in _keys(name))
    return list(dict.fromkeys(papers))


def _keys(name: Name) -> tuple[str, ...]:
    if isinstance(name, str):
        text = name.lower()
    else:
        text = ""
    if text.startswith("s="):
        return (_S2,)
    paper = re.fullmatch(r"(s[0-3])(-.+)?", text)
    if paper:
        return (SEEDS[paper[1]].key,)
    return USES[one_of(name, known(), "name to cite")]
