"""Types of what pages and pictures are made of.

Protocols name what is read of a result; any object that has it can be drawn. Pages are for users:
`UserInput` marks their arguments, so that the run-time type checks of the test suite skip them.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd

from orderone.core.inputs import UserInput

if TYPE_CHECKING:
    from orderone.sweeping.target import Target
    from orderone.sweeping.transfer import Transfer
else:
    Target = object
    Transfer = object

FilePath: TypeAlias = str | PathLike[str]
# Traces and layouts in plotly's vocabulary: nested dictionaries of plain values and arrays.
Trace: TypeAlias = dict[str, Any]
Layout: TypeAlias = dict[str, Any]
Figure: TypeAlias = Mapping[str, Any]  # {"data": [traces], "layout": layout}
Table: TypeAlias = Sequence[Sequence[str]]  # the first row is the head


@runtime_checkable
class CheckResult(Protocol):
    """Records and verdicts of a coordinate check: `measure.Check` or `measure.saved.Saved`."""

    @property
    def verdict(self) -> str: ...
    @property
    def causes(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def provenance(self) -> Mapping[str, object]: ...
    @property
    def axis(self) -> str: ...
    @property
    def frame(self) -> pd.DataFrame: ...
    @property
    def exponents(self) -> pd.DataFrame: ...
    @property
    def losses(self) -> pd.DataFrame: ...


@runtime_checkable
class LimitComparison(Protocol):
    """Samples of networks beside samples of their limit: `measure.Comparison`."""

    @property
    def quantity(self) -> str: ...
    @property
    def network(self) -> np.ndarray: ...
    @property
    def limit(self) -> np.ndarray: ...
    @property
    def distances(self) -> Sequence[object]: ...


@runtime_checkable
class FindingRecord(Protocol):
    """Verdict on one claim of an experiment: `gallery.Finding`."""

    @property
    def claim(self) -> str: ...
    @property
    def holds(self) -> bool | None: ...
    @property
    def numbers(self) -> str: ...
    @property
    def of(self) -> str: ...
    @property
    def erratum(self) -> str: ...


@runtime_checkable
class PictureRecord(Protocol):
    """Figure of an experiment: `gallery.Picture`."""

    @property
    def title(self) -> str: ...
    @property
    def figure(self) -> Figure: ...
    @property
    def alt(self) -> str: ...
    @property
    def caption(self) -> str: ...


@runtime_checkable
class GridRecord(Protocol):
    """Table of an experiment: `gallery.Grid`."""

    @property
    def title(self) -> str: ...
    @property
    def head(self) -> Sequence[object]: ...
    @property
    def rows(self) -> Sequence[Sequence[object]]: ...
    @property
    def caption(self) -> str: ...


@runtime_checkable
class ExperimentRecord(Protocol):
    """Description of an experiment: `gallery.Experiment`."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def paper(self) -> str: ...
    @property
    def errata(self) -> Sequence[str]: ...


@runtime_checkable
class GalleryEntry(Protocol):
    """Experiment with its findings and figures: `gallery.Reproduced`."""

    @property
    def experiment(self) -> ExperimentRecord: ...
    @property
    def scale(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def corrected(self) -> str | None: ...
    @property
    def findings(self) -> Sequence[FindingRecord]: ...
    @property
    def pictures(self) -> Sequence[PictureRecord | GridRecord]: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...


CheckInput: TypeAlias = Annotated[CheckResult, UserInput]
ComparisonInput: TypeAlias = Annotated[LimitComparison, UserInput]
EntryInput: TypeAlias = Annotated[GalleryEntry, UserInput]
EntriesInput: TypeAlias = Annotated[Sequence[GalleryEntry], UserInput]
PictureInput: TypeAlias = Annotated[PictureRecord, UserInput]
GridInput: TypeAlias = Annotated[GridRecord, UserInput]
TransferInput: TypeAlias = Annotated[Transfer, UserInput]
TargetInput: TypeAlias = Annotated[Target | None, UserInput]
