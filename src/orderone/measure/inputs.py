"""Types of what users pass to `coord_check`, `alignment` and `probe`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from orderone.core.inputs import Number, UserInput
from orderone.observe.batches import Batch, ModelInputs
from orderone.planning import Plan
from orderone.rules.composition import Composition
from orderone.theory.exponents import Parameterization

# return value of `build`
Built: TypeAlias = Annotated[nn.Module | Plan | tuple[object, ...] | list[object], UserInput]
Scheduler: TypeAlias = Annotated[LRScheduler, UserInput]  # ReduceLROnPlateau is one
Progress: TypeAlias = Callable[[int, int, str], None]  # runs done, number of runs, current run

# a function of the size, or of nothing for axes without a size of the model (batch, tokens)
BuildInput: TypeAlias = Annotated[Callable[..., Built], UserInput]
SizesInput: TypeAlias = Annotated[Iterable[int], UserInput]
SeedsInput: TypeAlias = Annotated[int | Iterable[int], UserInput]
RuleInput: TypeAlias = Annotated[str | Parameterization | Composition, UserInput]
OptimizerInput: TypeAlias = Annotated[str | type[Optimizer], UserInput]
RateInput: TypeAlias = Annotated[float | Mapping[str, float], UserInput]
BatchInput: TypeAlias = Annotated[Batch | list[object], UserInput]
BatchesInput: TypeAlias = Annotated[
    Batch | Iterable[object] | Callable[[], Iterable[object]] | Callable[[int, int], object],
    UserInput,
]
CollateInput: TypeAlias = Annotated[Callable[[Any], object], UserInput]
LossInput: TypeAlias = Annotated[Callable[..., Tensor], UserInput]
BaseInput: TypeAlias = Annotated[int | nn.Module, UserInput]
SchedulerInput: TypeAlias = Annotated[Callable[[Optimizer], Scheduler], UserInput]
ProgressInput: TypeAlias = Annotated[Progress, UserInput]
PatternsInput: TypeAlias = Annotated[str | Iterable[str], UserInput]
ModelInput: TypeAlias = Annotated[nn.Module, UserInput]
StepperInput: TypeAlias = Annotated[Optimizer, UserInput]
CallInput: TypeAlias = Annotated[ModelInputs, UserInput]
QuantitiesInput: TypeAlias = Annotated[str | Iterable[str], UserInput]
CorridorInput: TypeAlias = Annotated[Sequence[Number], UserInput]
FlagInput: TypeAlias = Annotated[bool, UserInput]
