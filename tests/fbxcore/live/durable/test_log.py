"""The log keeps what it acknowledged, in order, and says when it cannot."""

import errno
import os
import threading

import pytest

from fbxcore.errors import DamagedError, DiskFullError
from fbxcore.live.durable.frames import HEADER_BYTES, Frame, Kind
from fbxcore.live.durable.log import Log

BODIES = [bytes([n]) * (n * 7 % 40) for n in range(1, 9)]


def write(directory, frames, **options):
    """Write frames through a log and return those it called durable."""
    durable, failures = [], []
    log = Log(directory, durable.append, **options)
    list(log.replay())
    log.start()
    for frame in frames:
        log.append(frame, failures.append)
    log.close()
    return durable, failures


def read(directory):
    """Return (sequence, position, body) of every frame on disk."""
    log = Log(directory, lambda frame: None)
    return [(f.sequence, f.position, b"".join(map(bytes, f.body))) for f in log.replay()]


def adds(bodies=BODIES):
    """Return an add of one timestep for each body."""
    return [Frame(Kind.ADD, {"key": f"k{i}"}, [body], steps=1) for i, body in enumerate(bodies)]


def test_frames_come_back_in_order_with_sequence_and_position(tmp_path):
    """What was appended is read back as it was, numbered from 1, at positions that count steps."""
    write(tmp_path, adds())

    assert read(tmp_path) == [(i + 1, i, body) for i, body in enumerate(BODIES)]


def test_a_reopened_log_goes_on_where_it_ended(tmp_path):
    """A second run numbers its frames behind those of the first."""
    write(tmp_path, adds(BODIES[:3]))
    durable, _ = write(tmp_path, adds(BODIES[3:5]))

    assert [(f.sequence, f.position) for f in durable] == [(4, 3), (5, 4)]
    assert len(read(tmp_path)) == 5


def test_a_torn_tail_at_every_byte_leaves_the_intact_prefix(tmp_path):
    """Cutting the file anywhere gives exactly the frames that were whole."""
    write(tmp_path, adds())
    (segment,) = tmp_path.glob("*.log")
    whole = segment.read_bytes()
    ends = [0]
    for frame in adds():
        frame.sequence, frame.position = len(ends), len(ends) - 1
        ends.append(ends[-1] + sum(len(part) for part in frame.parts()))

    for cut in range(len(whole)):
        segment.write_bytes(whole[:cut])
        intact = sum(end <= cut for end in ends) - 1
        assert [body for _, _, body in read(tmp_path)] == BODIES[:intact], cut


def test_a_flipped_bit_before_the_tail_names_file_and_offset(tmp_path):
    """A bad frame with good ones behind it is an error, never a silent stop."""
    write(tmp_path, adds())
    (segment,) = tmp_path.glob("*.log")
    whole = segment.read_bytes()
    for at in range(0, HEADER_BYTES + 8):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        segment.write_bytes(damaged)

        with pytest.raises(DamagedError, match=rf"`{segment.name}` must be intact, .* at offset 0\."):
            read(tmp_path)


def test_a_missing_segment_is_an_error(tmp_path):
    """A gap in the sequence numbers is noticed at start."""
    write(tmp_path, adds(), segment_bytes=1)  # a segment a group
    for body in (b"x", b"y"):
        write(tmp_path, adds([body]), segment_bytes=1)
    segments = sorted(tmp_path.glob("*.log"))
    assert len(segments) >= 3
    segments[1].unlink()

    with pytest.raises(DamagedError, match="must go on with frame"):
        read(tmp_path)


def test_a_full_disk_leaves_no_trace_and_the_numbers_go_on(tmp_path, monkeypatch):
    """A group that does not fit is refused whole; the next one gets its numbers."""
    log_durable, failures, done = [], [], threading.Event()
    log = Log(tmp_path, lambda frame: (log_durable.append(frame), done.set()))
    log.start()
    log.append(adds()[0], failures.append)
    done.wait(5)
    real = os.writev

    def full(file, parts):
        real(file, parts[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    refused = threading.Event()
    log.append(adds()[1], lambda error: (failures.append(error), refused.set()))
    refused.wait(5)
    monkeypatch.setattr(os, "writev", real)
    log.append(adds()[2], failures.append)
    log.close()

    assert isinstance(failures[0], DiskFullError) and len(failures) == 1
    assert [(s, body) for s, _, body in read(tmp_path)] == [(1, BODIES[0]), (2, BODIES[2])]


def test_segments_go_only_below_both_marks(tmp_path):
    """A segment stays while one of the views has not applied all of it."""
    for body in BODIES[:4]:
        write(tmp_path, adds([body]), segment_bytes=1)
    log = Log(tmp_path, lambda frame: None, segment_bytes=1)
    list(log.replay())

    assert log.drop(below_sequence=3, below_position=0) == 0
    assert log.drop(below_sequence=3, below_position=4) == 2
    assert [s for s, _, _ in read(tmp_path)] == [3, 4]


def test_nothing_is_written_without_durability(tmp_path):
    """`none` calls frames durable and leaves no segment."""
    durable, _ = write(tmp_path, adds(), durability="none")

    assert len(durable) == len(BODIES)
    assert list(tmp_path.glob("*.log")) == []
