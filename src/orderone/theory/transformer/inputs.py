"""Types of the values that users pass to a Transformer; the functions that read them validate."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from orderone.core.inputs import Array, ArrayLike, UserInput
from orderone.theory.activations import Activation

ConstantsInput: TypeAlias = Annotated[Mapping[str, float] | None, UserInput]  # group -> number
MaskInput: TypeAlias = Annotated[ArrayLike | None, UserInput]  # true where queries attend
ActivationInput: TypeAlias = Annotated[str | Activation | Callable[[Array], Array], UserInput]
