"""What a buffer of a kind and its arguments comes to: rows, time axis, items and rules, in plain Python.

The service asks this before it allocates anything and the faces before they build anything, so that
both refuse the same arguments in the same words, which name what the user typed. Capacity is a product
of rows and time axis; what integer division or the period cut off is said in `Layout.warnings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fbxcore.buffers._arguments import (
    batch_size_of,
    check_boolean,
    check_capacity,
    check_period,
    clusters_of,
    cut_by_rows,
    device_warnings,
    integer_of,
    missing_axes_of,
    priority_exponent,
    sequence_warnings,
    time_axis_of,
    too_long,
    transition_warnings,
)
from fbxcore.errors import InvalidArgumentError, NotSupportedError


class _Required:
    """The default of an argument that must be given."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()

_FLAT = {
    "max_length": REQUIRED,
    "min_length": REQUIRED,
    "sample_batch_size": REQUIRED,
    "add_sequences": False,
    "add_batch_size": None,
}
_ITEM = {
    "max_length": REQUIRED,
    "min_length": REQUIRED,
    "sample_batch_size": REQUIRED,
    "add_sequences": False,
    "add_batches": False,
}
_TRAJECTORY = {
    "add_batch_size": REQUIRED,
    "sample_batch_size": REQUIRED,
    "sample_sequence_length": REQUIRED,
    "period": REQUIRED,
    "min_length_time_axis": REQUIRED,
    "max_size": None,
    "max_length_time_axis": None,
}
_QUEUE = {
    "add_batch_size": REQUIRED,
    "add_sequence_length": REQUIRED,
    "sample_sequence_length": REQUIRED,
    "max_length_time_axis": None,
    "max_size": None,
}
_CLUSTERED = {
    "max_length": REQUIRED,
    "min_length": REQUIRED,
    "sample_batch_size": REQUIRED,
    "num_clusters": REQUIRED,
    "cluster_leaf": REQUIRED,
}
_PRIORITISED = {"priority_exponent": 0.6, "device": "cpu"}

ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "flat": _FLAT,
    "item": _ITEM,
    "trajectory": _TRAJECTORY,
    "prioritised_flat": _FLAT | _PRIORITISED,
    "prioritised_item": _ITEM | _PRIORITISED,
    "prioritised_trajectory": _TRAJECTORY | _PRIORITISED,
    "trajectory_queue": _QUEUE,
    "clustered": _CLUSTERED,
}
"""The arguments of each kind, by Flashbax's names, with their defaults."""

KINDS_LATER: Final = ("mixer", "data_buffer")


@dataclass(frozen=True)
class Grid:
    """Where items may start: every `stride` slots of each row, L timesteps long."""

    rows: int
    time_axis: int
    sequence_length: int
    stride: int = 1

    @property
    def items_per_row(self) -> int:
        """Items that may start in one row."""
        return self.time_axis // self.stride

    @property
    def num_items(self) -> int:
        """Items over all rows."""
        return self.rows * self.items_per_row


@dataclass(frozen=True)
class Layout:
    """The effective sizes of a buffer; hashable, so that equal layouts share compiled functions."""

    kind: str
    rows: int
    time_axis: int
    min_time_axis: int  # timesteps that every row (independent: all together) holds before sampling
    sample_batch_size: int
    sequence_length: int
    period: int
    priority_exponent: float | None = None  # None: uniform
    items: bool = False  # given and sampled as [N, ...], in one row
    flat: bool = False  # sampled as experience.first and experience.second
    independent: bool = False  # each row advances on its own, in runs that no item leaves
    missing_axes: tuple[int, ...] = ()  # which of the axes [B, K] a batch given to a flat face leaves out
    add_sequence_length: int | None = None  # of a queue: what it says there is room for
    num_clusters: int = 0  # of a clustered buffer, …
    cluster_leaf: str = ""  # … and the leaf that says which one an item is of
    warnings: tuple[str, ...] = ()

    @property
    def capacity(self) -> int:
        """Timesteps over all rows."""
        return self.rows * self.time_axis

    @property
    def is_queue(self) -> bool:
        """Whether every timestep is handed out once, in the order it came."""
        return self.add_sequence_length is not None

    @property
    def keeps_base(self) -> bool:
        """Whether it may hold a timestep for ever, however much comes after it."""
        return self.independent or self.num_clusters > 0

    @property
    def stride(self) -> int:
        """Distance between the start slots of neighbouring items in the ring.

        Uniform kinds count their period from the oldest timestep, so that an item may start in any
        slot; weighted ones count it from slot 0, since an item keeps its weight where it starts.
        """
        return self.period if self.is_weighted else 1

    @property
    def is_weighted(self) -> bool:
        """Whether items have weights of their own: what must not be drawn has weight 0."""
        return self.priority_exponent is not None or self.independent

    @property
    def rows_in_step(self) -> int:
        """Rows that advance together: all of them, or each on its own."""
        return 1 if self.independent else self.rows

    @property
    def grid(self) -> Grid:
        """Where items start."""
        return Grid(self.rows, self.time_axis, self.sequence_length, self.stride)

    @property
    def items_per_row(self) -> int:
        """Items that may start in one row; an item's index is `row * items_per_row + item`."""
        return self.grid.items_per_row

    @property
    def num_items(self) -> int:
        """Items over all rows."""
        return self.grid.num_items


def bucket_of(count: int) -> int:
    """Return the power of two at or above a count: the static size a call is padded to."""
    return 1 << max(count - 1, 0).bit_length()


def layout_of(kind: str, arguments: Mapping[str, Any], *, independent: bool = False) -> Layout:
    """Return the layout of a buffer of that kind.

    Args:
        independent: each row advances on its own; the least length then counts all rows together.

    Raises:
        InvalidArgumentError: naming the argument as typed, in the message and in `loc`.
        NotSupportedError: for a kind that is known but has no layout.
    """
    given = _with_defaults(kind, arguments)
    if "add_sequence_length" in given:
        layout = _queue_layout(kind, given)
    elif "num_clusters" in given:
        layout = _clustered_layout(kind, given)
    elif "max_length_time_axis" in given:
        layout = _trajectory_layout(kind, given, independent=independent)
    else:
        is_item = "add_batches" in given
        layout = _item_layout(kind, given) if is_item else _flat_layout(kind, given, independent=independent)
    check_capacity(given, layout.capacity)
    return _independent(layout, given) if independent else layout


def _independent(layout: Layout, given: dict[str, Any]) -> Layout:
    if layout.items or layout.is_queue:
        why = "Items stand alone: any number of writers may add them as it is."
        raise InvalidArgumentError(
            f"`writers` must be 'lockstep' for kind {layout.kind!r}, got 'independent'. "
            f"{why if layout.items else 'All rows of a queue advance together.'}",
            loc=("writers",),
        )
    least = given["min_length"] if layout.flat else given["min_length_time_axis"]
    return replace(layout, independent=True, min_time_axis=max(least, layout.sequence_length))


def _with_defaults(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if kind in KINDS_LATER:
        raise NotSupportedError(f"`kind` must be one served here, got {kind!r}.", loc=("kind",))
    if kind not in ARGUMENTS:
        raise InvalidArgumentError(
            f"`kind` must be one of {', '.join(sorted(ARGUMENTS))}, got {kind!r}.", loc=("kind",)
        )
    accepted = ARGUMENTS[kind]
    for name in sorted(set(arguments) - set(accepted)):
        raise InvalidArgumentError(
            f"`{name}` must not be given for a {kind} buffer, which takes {', '.join(accepted)}.",
            loc=(name,),
        )
    given = {**accepted, **arguments}
    for name, value in given.items():
        if value is REQUIRED:
            raise InvalidArgumentError(f"`{name}` must be given for a {kind} buffer.", loc=(name,))
    return given


def _flat_layout(kind: str, given: dict[str, Any], *, independent: bool) -> Layout:
    max_length = integer_of(given, "max_length", at_least=1)
    min_length = integer_of(given, "min_length", at_least=0)
    sample_batch_size = batch_size_of(given, max_length)
    check_boolean(given, "add_sequences")
    rows = 1 if given["add_batch_size"] is None else integer_of(given, "add_batch_size", at_least=1)
    time_axis = max_length // rows
    if time_axis < 2:
        raise InvalidArgumentError(
            f"`max_length` must be at least 2 timesteps for each of {rows} rows ({2 * rows}), "
            f"got {max_length}. Raise it, or lower `add_batch_size`.",
            loc=("max_length",),
        )
    min_time_axis = min_length // rows + 1
    if min_time_axis > time_axis:
        raise InvalidArgumentError(
            f"`min_length` must be below {time_axis * rows} (`max_length` {max_length} over {rows} rows), "
            f"got {min_length}.",
            loc=("min_length",),
        )
    raised = transition_warnings(min_length, rows, independent=independent)
    return Layout(
        kind=kind,
        rows=rows,
        time_axis=time_axis,
        min_time_axis=max(min_time_axis, 2),
        sample_batch_size=sample_batch_size,
        sequence_length=2,
        period=1,
        priority_exponent=priority_exponent(given),
        flat=True,
        missing_axes=missing_axes_of(given),
        warnings=(*cut_by_rows("max_length", max_length, rows), *raised, *device_warnings(given)),
    )


def _item_layout(kind: str, given: dict[str, Any]) -> Layout:
    max_length = integer_of(given, "max_length", at_least=1)
    min_length = integer_of(given, "min_length", at_least=0)
    sample_batch_size = batch_size_of(given, max_length)
    check_boolean(given, "add_sequences")
    check_boolean(given, "add_batches")
    if min_length > max_length:
        raise InvalidArgumentError(
            f"`min_length` must be at most `max_length` ({max_length}), got {min_length}.",
            loc=("min_length",),
        )
    warnings = ["`min_length` 0 is raised to 1: an empty buffer has no item."] if min_length < 1 else []
    return Layout(
        kind=kind,
        rows=1,
        time_axis=max_length,
        min_time_axis=max(min_length, 1),
        sample_batch_size=sample_batch_size,
        sequence_length=1,
        period=1,
        priority_exponent=priority_exponent(given),
        items=True,
        warnings=(*warnings, *device_warnings(given)),
    )


def _trajectory_layout(kind: str, given: dict[str, Any], *, independent: bool) -> Layout:
    rows = integer_of(given, "add_batch_size", at_least=1)
    length = integer_of(given, "sample_sequence_length", at_least=1)
    period = integer_of(given, "period", at_least=1)
    min_time_axis = integer_of(given, "min_length_time_axis", at_least=0)
    sample_batch_size = integer_of(given, "sample_batch_size", at_least=1)
    exponent = priority_exponent(given)
    typed, time_axis, warnings = time_axis_of(given, rows)
    if exponent is not None or independent:
        check_period(period, time_axis, typed, given)
        whole, time_axis = time_axis, time_axis - time_axis % period
        if whole != time_axis:
            warnings.append(
                f"The time axis of {whole} is cut to {time_axis}, a multiple of `period` {period}: "
                f"{(whole - time_axis) * rows} timesteps less over {rows} rows."
            )
    if length > time_axis:
        raise too_long(length, time_axis, typed, given)
    if min_time_axis > time_axis:
        raise InvalidArgumentError(
            f"`min_length_time_axis` must be at most the time axis ({time_axis}, from `{typed}` "
            f"{given[typed]}), got {min_time_axis}.",
            loc=("min_length_time_axis",),
        )
    return Layout(
        kind=kind,
        rows=rows,
        time_axis=time_axis,
        min_time_axis=max(min_time_axis, length),
        sample_batch_size=sample_batch_size,
        sequence_length=length,
        period=period,
        priority_exponent=exponent,
        warnings=(*warnings, *sequence_warnings(length, period, min_time_axis), *device_warnings(given)),
    )


def _queue_layout(kind: str, given: dict[str, Any]) -> Layout:
    rows = integer_of(given, "add_batch_size", at_least=1)
    length = integer_of(given, "sample_sequence_length", at_least=1)
    if given["max_size"] is not None:  # as in Flashbax, it wins where both are given
        given = given | {"max_length_time_axis": None}
    typed, time_axis, warnings = time_axis_of(given, rows)
    if length > time_axis:
        raise too_long(length, time_axis, typed, given)
    return Layout(
        kind=kind,
        rows=rows,
        time_axis=time_axis,
        min_time_axis=length,
        sample_batch_size=rows,
        sequence_length=length,
        period=length,
        add_sequence_length=integer_of(given, "add_sequence_length", at_least=1),
        warnings=tuple(warnings),
    )


def _clustered_layout(kind: str, given: dict[str, Any]) -> Layout:
    clusters, max_length = clusters_of(given)
    capacity = max_length - max_length % clusters
    min_length = integer_of(given, "min_length", at_least=0)
    if min_length > capacity:
        raise InvalidArgumentError(
            f"`min_length` must be at most {capacity} (`max_length` {max_length} over {clusters} clusters), "
            f"got {min_length}.",
            loc=("min_length",),
        )
    if not isinstance(given["cluster_leaf"], str):
        raise InvalidArgumentError(
            f"`cluster_leaf` must name a leaf, got {given['cluster_leaf']!r:.80}.", loc=("cluster_leaf",)
        )
    return Layout(
        kind=kind,
        rows=1,
        time_axis=capacity,
        min_time_axis=max(min_length, 1),
        sample_batch_size=integer_of(given, "sample_batch_size", at_least=1),
        sequence_length=1,
        period=1,
        items=True,
        num_clusters=clusters,
        cluster_leaf=given["cluster_leaf"],
        warnings=tuple(cut_by_rows("max_length", max_length, clusters, "clusters", "items")),
    )
