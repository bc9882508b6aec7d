"""Types of frames and of their rows or columns.

Tests check them at run time. For type checkers they are Any, because the annotations of pandas do
not distinguish whether a selection is a frame or a series.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    Frame: TypeAlias = Any
    Line: TypeAlias = Any
    Row: TypeAlias = Any
else:
    Frame = pd.DataFrame
    Line = pd.Series
    Row = tuple  # a named tuple of `itertuples`

__all__ = ["Frame", "Line", "Row"]
