"""Types of the arguments of data sets; see `orderone.core.inputs`."""

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Annotated, TypeAlias

import torch
from torch import Tensor

from orderone.core.inputs import UserInput

if TYPE_CHECKING:
    import tokenizers

    LoadedTokenizer: TypeAlias = tokenizers.Tokenizer
else:
    LoadedTokenizer = object  # an optional package, loaded by the functions that need it

Path: TypeAlias = str | PathLike[str]
Device: TypeAlias = Annotated[torch.device | str | int | None, UserInput]
Root: TypeAlias = Annotated[Path, UserInput]  # the folder of data sets
Cache: TypeAlias = Annotated[Path | bool | None, UserInput]
Tokenizer: TypeAlias = Annotated[Path | LoadedTokenizer, UserInput]
Text: TypeAlias = Annotated[
    Path | bytes | bytearray | memoryview | Iterable[Path] | Tensor, UserInput
]
TokenNumbers: TypeAlias = Annotated[Tensor, UserInput]
Pictures: TypeAlias = Annotated[Path | tuple[Tensor, Tensor] | list[Tensor], UserInput]
