"""Types of the arguments of a sweep: the model, the space, the search, and how it is run."""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from torch import nn
from torch.optim import Optimizer

from orderone.core.inputs import UserInput
from orderone.planning import Plan
from orderone.rules.composition import Composition
from orderone.theory.exponents import Parameterization

if TYPE_CHECKING:
    import pandas
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
else:  # Optuna is optional
    BasePruner = object
    BaseSampler = object

Build: TypeAlias = Annotated[Callable[..., nn.Module | tuple[nn.Module, Optimizer]], UserInput]
SpaceInput: TypeAlias = Annotated[Mapping[str, object], UserInput]
Sizes: TypeAlias = Annotated[int | Iterable[int] | None, UserInput]
Rule: TypeAlias = str | Parameterization | Composition
Rules: TypeAlias = Annotated[Rule | Iterable[Rule], UserInput]
Optimizers: TypeAlias = Annotated[
    str | type[Optimizer] | Iterable[str | type[Optimizer]] | None, UserInput
]
Base: TypeAlias = Annotated[
    int | Mapping[str, object] | nn.Module | Plan | str | PathLike[str] | None, UserInput
]
SamplerInput: TypeAlias = Annotated[str | BaseSampler, UserInput]
PrunerInput: TypeAlias = Annotated[str | BasePruner | None, UserInput]
Stacked: TypeAlias = Annotated[bool | Literal["auto"], UserInput]
Frame: TypeAlias = Annotated["pandas.DataFrame", UserInput]  # one row per training
