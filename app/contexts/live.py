"""What of a buffer moves: the numbers of an event message and their text, drawn once for page and stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.contexts import charts, units
from app.contexts.shell import Pill

State = Mapping[str, Any]  # of GET /buffers/{name}, with `add_rate` and `sample_rate`
QUEUE = ("waiting", "reserved", "taken")  # what only a queue has


def unit_of(state: State) -> str:
    """What a buffer holds: timesteps, or items."""
    return "items" if str(state["kind"]).endswith(("item", "clustered")) else "timesteps"


def short_unit_of(state: State) -> str:
    """The same, where room is scarce."""
    return "items" if unit_of(state) == "items" else "steps"


def is_queue(state: State) -> bool:
    """Whether what it holds is taken once instead of sampled."""
    return state["kind"] == "trajectory_queue"


def filled(state: State) -> int:
    """Slots per row that hold data."""
    return int(state["size"]) // max(int(state["rows"]), 1)


def fill_share(state: State) -> float:
    """How full the ring is, 0 to 1."""
    return int(state["size"]) / max(int(state["capacity"]), 1)


def tape_of(state: State) -> charts.Tape:
    """The ring as a picture, with its sentence; of independent writers only how full it is."""
    head = filled(state) if is_independent(state) else int(state["position"])
    return charts.draw_tape(head, int(state["time_axis"]), filled(state), tape_label(state))


def tape_label(state: State) -> str:
    """Where the ring stands, in words."""
    head = int(state["position"]) % max(int(state["time_axis"]), 1)
    held = (
        f"{units.grouped(state['size'])} of {units.grouped(state['capacity'])} {unit_of(state)} "
        f"{'waiting' if is_queue(state) else 'held'}, {units.percent(fill_share(state)).text} %; "
    )
    if is_independent(state):
        return f"{held}each of {units.grouped(state['rows'])} rows goes on by itself"
    return f"{held}the next step goes to slot {units.grouped(head)} of {units.grouped(state['time_axis'])}"


def is_independent(state: State) -> bool:
    """Whether each row advances on its own."""
    return (state.get("config") or {}).get("writers") == "independent"


def ready_pill(state: State) -> Pill:
    """Whether the buffer can be sampled, and why not."""
    if state["can_sample"]:
        return Pill("ready", "good", f"can be {_used(state)}")
    return Pill("filling", "warn", why_not(state))


def _used(state: State) -> str:
    return "taken from" if is_queue(state) else "sampled"


def why_not(state: State) -> str:
    """Why a buffer cannot be sampled now; empty when it can."""
    if state["can_sample"]:
        return ""
    needed = state.get("needed")
    if not needed:
        return f"It cannot be {_used(state)} now."
    if "members" in state:
        lacking = ", ".join(member["name"] for member in state["members"] if not member["can_sample"])
        return f"It cannot be sampled before its members can: {lacking}."
    unit = units.count(needed, unit_of(state))
    where = "" if int(state["rows"]) == 1 or is_independent(state) else " in each row"
    return f"It needs {unit.text} more {unit.unit}{where} before it can be {_used(state)}."


def texts(state: State) -> dict[str, str]:
    """The moving numbers as text, by the name the page marks them with."""
    short = short_unit_of(state)
    return {
        "size": units.grouped(state["size"]),
        "fill": units.percent(fill_share(state)).text,
        "added": units.grouped(state["added"]),
        "sampled": units.grouped(state["sampled"]),
        "add_rate": units.per_second(state.get("add_rate"), short).text,
        "sample_rate": units.per_second(state.get("sample_rate"), "items").text,
        "ratio": units.ratio(state["sampled"], state["added"]).text,
        "head": units.grouped(int(state["position"]) % max(int(state["time_axis"]), 1)),
        "position": units.grouped(state["position"]),
        "ready": ready_pill(state).text,
        "ready_tone": ready_pill(state).tone,
        "ready_title": ready_pill(state).title,
        "why_not": why_not(state),
        "laps": laps(state),
    } | {name: units.grouped(state[name]) for name in QUEUE if name in state}


def laps(state: State) -> str:
    """How often the ring went round."""
    return units.grouped(int(state["position"]) // max(int(state["time_axis"]), 1))


def message(states: list[State], sums: Mapping[str, float] | None, at: float) -> dict[str, Any]:
    """The body of one `buffers` event."""
    body = {"at": round(at, 3), "items": [_item(state) for state in states]}
    return body | ({"totals": totals(sums)} if sums is not None else {})


def _item(state: State) -> dict[str, Any]:
    names = (
        "size", "capacity", "position", "is_full", "can_sample", "needed", "added", "sampled", "bytes",
        "add_rate", "sample_rate",
    )  # fmt: skip
    tape = tape_of(state)
    return {
        "name": state["name"],
        "values": {name: state.get(name) for name in names}
        | {name: state[name] for name in QUEUE if name in state},
        "text": texts(state),
        "tape": {"cells": tape.digits, "head": tape.head, "label": tape.label},
    }


def totals(sums: Mapping[str, float]) -> dict[str, str]:
    """The sums over all buffers, as text."""
    return {
        "size": units.grouped(sums["size"]),
        "add_rate": units.per_second(sums["add_rate"], "steps").text,
        "sample_rate": units.per_second(sums["sample_rate"], "items").text,
    }


def vaults_message(states: list[State], at: float) -> dict[str, Any]:
    """The body of one `vaults` event."""
    items = [
        {
            "name": s["name"],
            "values": {"length": s["length"], "pending": s["pending"]},
            "text": vault_texts(s),
        }
        for s in states
    ]
    return {"at": round(at, 3), "items": items}


def vault_texts(state: State) -> dict[str, str]:
    """The moving numbers of a vault as text."""
    return {
        "length": units.grouped(state["length"]),
        "pending": units.grouped(state["pending"]),
        "pending_note": pending_note(state["pending"], is_shut=state["is_shut"]),
    }


def pending_note(pending: int | None, *, is_shut: bool = False) -> str:
    """What pending steps are."""
    if pending is None:
        return "the log could not be opened and keeps what it has"
    if pending:
        return "kept in the log only" if is_shut else "acknowledged and logged, not yet in the vault"
    return "all that was acknowledged is in the vault"
