"""Frames and their columns or lines, as annotations: checked when tests run; type checkers take
them as they come, since pandas' stubs cannot tell one from the other."""

from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    Frame: TypeAlias = Any
    Line: TypeAlias = Any
else:
    Frame = pd.DataFrame
    Line = pd.Series
