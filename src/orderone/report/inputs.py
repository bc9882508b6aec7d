"""Types of the arguments of pages and figures.

Result types are imported for type checkers only, so that a page can be drawn without torch.
`UserInput` marks arguments of users, which the run-time type checks of the test suite skip.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from orderone.core.inputs import UserInput

if TYPE_CHECKING:
    from orderone.gallery.experiment import Finding, Grid, Picture
    from orderone.gallery.run import Reproduced
    from orderone.measure.check import Check
    from orderone.measure.limit_comparison import Comparison
    from orderone.measure.saved import Saved
    from orderone.sweeping.target import Target
    from orderone.sweeping.transfer import Transfer
else:
    Check = Comparison = Saved = object
    Finding = Grid = Picture = Reproduced = object
    Target = Transfer = object

FilePath: TypeAlias = str | PathLike[str]
# Traces and layouts in plotly's vocabulary: nested dictionaries of plain values and arrays.
Trace: TypeAlias = dict[str, Any]
Layout: TypeAlias = dict[str, Any]
Figure: TypeAlias = Mapping[str, Any]  # {"data": [traces], "layout": layout}
Table: TypeAlias = Sequence[Sequence[str]]  # the first row is the head


CheckInput: TypeAlias = Annotated[Check | Saved, UserInput]
ComparisonInput: TypeAlias = Annotated[Comparison, UserInput]
Claim: TypeAlias = Finding  # verdict on one claim of an experiment
EntryInput: TypeAlias = Annotated[Reproduced, UserInput]
EntriesInput: TypeAlias = Annotated[Sequence[Reproduced], UserInput]
PictureInput: TypeAlias = Annotated[Picture, UserInput]
GridInput: TypeAlias = Annotated[Grid, UserInput]
TransferInput: TypeAlias = Annotated[Transfer, UserInput]
TargetInput: TypeAlias = Annotated[Target | None, UserInput]
