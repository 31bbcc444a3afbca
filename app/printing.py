"""What commands print: tables of items and of one item's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from fbxcore.spec import parse_spec


def table(title: str, items: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    """Return items as rows, without columns that are empty everywhere."""
    drawn = Table(title=f"{title} ({len(items)})", title_justify="left")
    shown = [column for column in columns if not items or any(item.get(column) for item in items)]
    for column in shown:
        is_number = any(isinstance(item.get(column), int | float) for item in items)
        drawn.add_column(column.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for item in items:
        drawn.add_row(*[_text(item.get(column)) for column in shown])
    return drawn


def fields(title: str, members: Mapping[str, Any]) -> Table:
    """Return one item's fields as rows."""
    drawn = Table("field", "value", title=title, title_justify="left")
    for name, value in members.items():
        if name != "config":  # the other fields, as they were asked for
            drawn.add_row(name.replace("_", " "), _spec_text(value) if name == "spec" else _text(value))
    return drawn


def _spec_text(spec: Mapping[str, Any]) -> str:
    """Return a spec with a line for each leaf."""
    leaves = parse_spec(spec)
    width = max(map(len, leaves))
    lines = [f"{name:{width}}  {leaf.dtype} {list(leaf.shape) or ''}" for name, leaf in leaves.items()]
    return _text("\n".join(line.rstrip() for line in lines))


def _text(value: Any) -> str:
    """Return a cell; Rich would read brackets as markup."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        value = ", ".join(value) or "–"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text.replace("[", r"\[")
