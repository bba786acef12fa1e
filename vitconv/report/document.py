"""What a report is made of: a verdict, facts, sections of rows, charts. How they look is not said here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal

from vitconv.record import dataclass

Value = str | int | float | bool | None | tuple[str, ...]

Status = Literal["ok", "info", "skip", "warn", "fail"]

# How a column's values are written; the JSON always has the value itself.
Form = Literal["text", "code", "count", "bytes", "number", "ratio", "seconds", "percent"]

_SEVERITY: tuple[Status, ...] = ("info", "skip", "ok", "warn", "fail")

# Top-level names of the JSON form that a report's own data cannot take.
RESERVED = frozenset({"schema", "schema_version", "title", "verdict", "facts", "sections", "environment", "command"})


@dataclass(frozen=True)
class Column:
    """One column of a section: its key in the JSON, its title, and how its values are written."""

    key: str
    title: str
    form: Form = "text"


@dataclass(frozen=True)
class Row:
    """One row: a value per column, whether it is as it should be, and a sentence if there is more to say."""

    cells: tuple[Value, ...]
    status: Status = "info"
    detail: str = ""


@dataclass(frozen=True)
class Series:
    """One line of a chart. A value that is not finite is drawn as a mark at the upper edge."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Band:
    """A shaded range of a chart, such as what correct variants reach: (x, low, high) from left to right."""

    name: str
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Chart:
    """A line chart over a number or, with `ticks`, over named places: x = 0 is the first of them."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()
    ticks: tuple[str, ...] = ()
    log: bool = True


@dataclass(frozen=True)
class Section:
    """A table with a title, what is to be said about it, and charts. The first column names the row.

    On a page, `folded` shows no more than the title until it is asked for, and `sortable` lets the reader sort the
    rows by any column; other forms take no notice.

    Raises:
        ValueError: a row has more or fewer cells than there are columns, or a column takes a reserved key.
    """

    key: str
    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    folded: bool = False
    sortable: bool = False

    def __post_init__(self) -> None:
        keys = [column.key for column in self.columns]
        if len({*keys, "status", "detail"}) != len(keys) + 2:
            raise ValueError(f"section {self.key!r}: column keys {keys} must be different, and not status or detail")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"section {self.key!r}: expected {len(self.columns)} cells, got {row.cells}")

    @property
    def status(self) -> Status:
        """Return the most severe status of the rows."""
        return worst(row.status for row in self.rows)


@dataclass(frozen=True)
class Fact:
    """Something that was found out: one value, or one per side of a comparison."""

    label: str
    values: tuple[Value, ...]
    form: Form = "text"

    @property
    def differs(self) -> bool:
        """Say whether the sides have different values; one that is not known is none."""
        known = [value for value in self.values if value is not None]
        return any(value != known[0] for value in known[1:])


@dataclass(frozen=True)
class Verdict:
    """The answer in a word or two, how it stands, and the sentence that a person needs."""

    word: str
    status: Status
    sentence: str = ""


@dataclass(frozen=True)
class Report:
    """One whole answer of one verb.

    `schema` and `version` name the JSON form, which changes only together with the version. `data` adds
    top-level names to the JSON. `sides` names the values of the facts when there is more than one, `side_keys` does so
    in the JSON, where long names are in the way.

    Raises:
        ValueError: `data` takes a reserved name, a fact has not one value per side, or a side has no key.
    """

    schema: str
    title: str
    version: int = 1
    verdict: Verdict | None = None
    sides: tuple[str, ...] = ()
    side_keys: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    sections: tuple[Section, ...] = ()
    environment: tuple[Fact, ...] = ()
    command: str = ""
    data: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = sorted(RESERVED & set(self.data))
        if taken:
            raise ValueError(f"report {self.schema!r}: data takes the reserved names {taken}")
        if self.side_keys and len(self.side_keys) != len(self.sides):
            raise ValueError(f"report {self.schema!r}: {len(self.side_keys)} keys for sides {self.sides}")
        for fact in self.facts:
            if len(fact.values) != max(1, len(self.sides)):
                raise ValueError(f"fact {fact.label!r} has {len(fact.values)} values for sides {self.sides}")


def worst(statuses: Iterable[Status]) -> Status:
    """Return the most severe of the statuses; "info" if there are none."""
    found: Status = "info"
    for status in statuses:
        found = max(found, status, key=_SEVERITY.index)
    return found
