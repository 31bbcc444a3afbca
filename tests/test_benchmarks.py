"""The benchmarks run, so that they cannot rot; what they measure here means nothing."""

import dataclasses

import pytest

from benchmarks import engine_peers
from benchmarks.accelerator import accelerator_ratios
from benchmarks.capacity import costs, plot, print_costs
from benchmarks.engine import CASES, engine_ratios
from benchmarks.http import http_ratios
from benchmarks.report import interleaved, print_table
from benchmarks.restart import restarts
from benchmarks.vault import vault_ratios
from benchmarks.vault_peers import TARGETS, peer_ratios, stream_ratios
from benchmarks.vault_writes import log_rows, print_logged, print_writes, write_rows
from benchmarks.writers import writer_ratios


def check(rows, peers):
    """Check that each line compares two times and that every peer is there."""
    for row in rows:
        assert row.low <= row.ratio <= row.high
        assert row.ours_us > 0 and row.peer_us > 0
    assert {row.peer for row in rows} == peers


def test_a_ratio_above_one_means_ahead_of_the_peer():
    """Against a peer that does the work twenty times over, the ratio is far above 1."""
    row = interleaved("sum", "slow", lambda: sum(range(500)), lambda: sum(range(10_000)), calls=50, repeats=5)

    assert row.ratio > 5


def test_a_table_shows_ratio_and_target(capsys):
    """The median, its range, and what is wanted stand in one line."""
    row = interleaved("nothing", "peer", lambda: None, lambda: None, calls=10, repeats=3, target=0.5)
    print_table("Title", [row])

    assert "| nothing | peer |" in capsys.readouterr().out.splitlines()[-1]


SMALL = [dataclasses.replace(CASES[k], capacity=8_000) for k in (0, 5, 9)]


def test_the_engine_is_measured_beside_flashbax():
    """Adds, draws of each size and updates have a line each; an accelerator has fewer."""
    rows, fewer = engine_ratios(seconds=0.5, cases=SMALL), accelerator_ratios(SMALL[-1:], seconds=0.1)

    check([*rows, *fewer], {"Flashbax"})
    assert len(rows) == sum(len(c.adds) + len(c.samples) + bool(c.update) for c in SMALL)
    assert [row.work for row in fewer] == [row.work for row in rows[-3:]]


def test_the_engine_is_measured_beside_other_buffers():
    """A ring in NumPy and one copy are always there; what is not installed is named with the reason."""
    rows, absent = engine_peers.peer_ratios(seconds=0.2), engine_peers.missing()

    check(rows, {*engine_peers.PEERS, "one copy of the frames"} - set(absent))
    assert "NumPy ring" not in absent and all(absent.values())


def test_cost_is_measured_and_drawn_by_capacity(capsys):
    """Each call has a time at each capacity, a line in the table and two in the picture."""
    measured = costs(seconds=0.2, capacities=(1_000,))
    print_costs(measured)
    table, picture = capsys.readouterr().out, plot(measured)

    assert all(cost.ours_us > 0 and cost.peer_us > 0 for cost in measured[1_000])
    assert all(cost.work in table and cost.work in picture for cost in measured[1_000])
    assert picture.count('stroke-dasharray="5 4"') == len(measured[1_000]) == 5


def test_the_vault_is_measured_beside_flashbax():
    """Appends and reads are compared."""
    check(vault_ratios(), {"Flashbax Vault"})


def test_what_a_write_costs_is_counted(capsys):
    """Of incompressible records at least their bytes are written, and no more stays than was written."""
    rows = write_rows()
    logged = log_rows()
    print_writes(rows)
    print_logged(logged)

    for row in rows:
        for cost in (row.ours, row.theirs):
            assert cost.seconds > 0 and cost.files > 0
            assert 0 < cost.on_disk <= cost.written
        assert row.ours.written > 0.9 or not row.work.startswith("MuJoCo")
    assert [line.startswith("| ") for line in capsys.readouterr().out.splitlines()].count(True) >= 10


def test_the_vault_is_measured_beside_other_stores():
    """Each reads what was written, and a stream is compared with reading in order."""
    check(peer_ratios(), set(TARGETS))
    check(stream_ratios(), {"our own read in order"})


def test_restarts_are_measured_beside_reading_their_files():
    """Each way back is there, with all steps."""
    found = restarts(2000)

    assert len(found) == 5 and {one.steps for one in found} == {2000}
    assert all(one.seconds > 0 and one.file_bytes > 2000 for one in found)


def test_http_is_measured_beside_servers_that_do_less():
    """Both batches are asked of both peers."""
    rows = http_ratios(repeats=1, calls=5)

    check(rows, {"bare Starlette, same bytes", "FastAPI, same work in line"})
    assert len(rows) == 4


def test_independent_writers_are_measured_beside_rows_in_lockstep():
    """In process and over HTTP, across the end of an episode."""
    rows = writer_ratios(repeats=1, calls=5, kinds=["flat"], steps=[64])

    check(rows, {"rows in lockstep", "one request for all 64"})
    assert [row.work for row in rows] == ["flat, in process: 64 × 64", *["flat, HTTP: 64 × 64"] * 2]


@pytest.mark.parametrize("calls", [1, 7])
def test_both_sides_are_called_equally_often(calls):
    """One call to warm up and then as many as asked, on each side."""
    counts = {"ours": 0, "theirs": 0}

    def count(side):
        counts[side] += 1

    interleaved("w", "p", lambda: count("ours"), lambda: count("theirs"), calls=calls, repeats=3)

    assert counts["ours"] == counts["theirs"] == 1 + 3 * calls
