"""A torn tail or a flipped bit: the intact prefix comes back, or an error names file and offset."""

import struct
import zlib

import numpy as np
import pytest
from live_data import config

from fbxcore.errors import DamagedError
from fbxcore.live.config import load_config, save_config
from fbxcore.live.durable.checkpoint import FILE, Checkpoint, Counters
from fbxcore.live.durable.frames import HEADER_BYTES, MAGIC, Frame, Kind
from fbxcore.live.durable.log import Log

KINDS = list(Kind)


def frame(kind):
    """Return a small frame of a kind; what its meta and body mean is nothing to the log."""
    return Frame(kind, {"key": kind.name}, [bytes([kind] * 5), b"\x00\xff"], steps=int(kind is Kind.ADD))


def write(directory, kinds):
    """Write a frame of each kind; return the segment's bytes and the offset behind each frame."""
    log = Log(directory, lambda frame: None)
    list(log.replay())
    log.start()
    frames = [frame(kind) for kind in kinds]
    for one in frames:
        log.append(one, pytest.fail)
    log.close()
    ends = np.cumsum([sum(len(part) for part in one.parts()) for one in frames]).tolist()
    return log.segments[-1].path, ends


def kinds_in(directory):
    """Return the kinds of the frames that come back, checking that each is whole."""
    found = list(Log(directory, lambda frame: None).replay())
    for one in found:
        assert b"".join(map(bytes, one.body)) == b"".join(frame(one.kind).body)
        assert one.meta == {"key": one.kind.name}
    return [one.kind for one in found]


def flips(data, start, stop):
    """Yield the bytes with one bit of each byte of `[start, stop)` flipped in turn, and which bit that is."""
    for at in range(start, stop):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        yield bytes(flipped), (at, at % 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tail_torn_at_every_byte_leaves_the_intact_prefix(tmp_path, kind):
    """Whatever the last frame is, without all of it exactly the frames before it come back."""
    path, ends = write(tmp_path, [*KINDS, kind])
    whole = path.read_bytes()

    for cut in range(ends[-2], ends[-1]):
        path.write_bytes(whole[:cut])
        assert kinds_in(tmp_path) == KINDS, cut
        assert path.stat().st_size == ends[-2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_flipped_anywhere_in_the_tail_leaves_the_intact_prefix(tmp_path, kind):
    """Header, lengths, checksum, meta and body: a last frame that is not whole is nobody's."""
    path, ends = write(tmp_path, [*KINDS, kind])
    whole = path.read_bytes()

    for flipped, where in flips(whole, ends[-2], ends[-1]):
        path.write_bytes(flipped)
        assert kinds_in(tmp_path) == KINDS, where


@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_flipped_before_the_tail_names_file_and_offset(tmp_path, kind):
    """With a whole frame behind it, a bad one is damage: never a silent stop."""
    path, ends = write(tmp_path, [kind, *KINDS])
    whole = path.read_bytes()

    for flipped, where in flips(whole, 0, ends[0]):
        path.write_bytes(flipped)
        with pytest.raises(DamagedError, match=rf"`{path.name}` must be intact, .* at offset 0\.") as raised:
            kinds_in(tmp_path)
        assert raised.value.details == {"file": path.name, "offset": 0}, where
        assert path.read_bytes() == flipped, "what is damaged is left as it is"


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_an_earlier_segment_is_no_tail(tmp_path, kind):
    """A segment that has a next one was whole once: cut or changed anywhere, it is damage."""
    path, ends = write(tmp_path, [*KINDS, kind])
    whole = path.read_bytes()
    (tmp_path / f"{len(KINDS) + 2:020d}.log").touch()

    for cut in range(ends[-2] + 1, ends[-1]):
        path.write_bytes(whole[:cut])
        with pytest.raises(DamagedError, match=rf"`{path.name}` .* at offset {ends[-2]}\."):
            kinds_in(tmp_path)
    for flipped, _ in flips(whole, ends[-2], ends[-2] + HEADER_BYTES):
        path.write_bytes(flipped)
        with pytest.raises(DamagedError, match=rf"`{path.name}` .* at offset {ends[-2]}\."):
            kinds_in(tmp_path)


@pytest.mark.parametrize("place", [0, 2, len(KINDS) - 1])
def test_a_kind_of_a_newer_version_is_told_as_that(tmp_path, place):
    """An unknown kind under a right checksum is no damage and no tail: a newer version wrote it."""
    path, ends = write(tmp_path, KINDS)
    whole = bytearray(path.read_bytes())
    start = ([0, *ends])[place]
    whole[start + len(MAGIC)] = 200
    crc = zlib.crc32(whole[start : start + HEADER_BYTES - 4])
    crc = zlib.crc32(whole[start + HEADER_BYTES : ends[place]], crc)
    struct.pack_into("<I", whole, start + HEADER_BYTES - 4, crc)
    path.write_bytes(whole)

    with pytest.raises(DamagedError, match=rf"kind 200 at offset {start}\. Start the newer") as raised:
        kinds_in(tmp_path)
    assert raised.value.code == "newer_version" and raised.value.details["offset"] == start
    assert path.read_bytes() == whole


def test_a_segment_under_another_name_is_an_error(tmp_path):
    """What it holds must begin with the number it is named by, whatever the views hold."""
    path, _ = write(tmp_path, KINDS[:2])
    path.rename(tmp_path / f"{3:020d}.log")

    with pytest.raises(DamagedError, match="must go on with frame 3, got 1"):
        list(Log(tmp_path, lambda frame: None).replay(covered=9))


def test_a_log_goes_on_behind_a_gap(tmp_path):
    """Views that are ahead make the next frame begin a segment; with them the log reads whole."""
    write(tmp_path, KINDS[:2])
    log = Log(tmp_path, lambda frame: None)
    list(log.replay())
    log.start(next_sequence=6, position=4)
    log.append(frame(Kind.RESET), pytest.fail)
    log.close()

    again = Log(tmp_path, lambda frame: None)
    assert [one.sequence for one in again.replay(covered=5)] == [1, 2, 6]
    with pytest.raises(DamagedError, match="must go on with frame 3, got 6"):
        list(Log(tmp_path, lambda frame: None).replay(covered=4))


def test_a_changed_id_of_the_log_is_noticed(tmp_path):
    """The vault tells by it what it holds: a flipped bit in any byte of `log.json` is damage."""
    log = Log(tmp_path, lambda frame: None)
    whole = (tmp_path / "log.json").read_bytes()

    for flipped, where in flips(whole, 0, len(whole)):
        (tmp_path / "log.json").write_bytes(flipped)
        with pytest.raises(DamagedError, match=r"`log\.json`"):
            pytest.fail(f"{where}: {Log(tmp_path, lambda frame: None).id}")
    (tmp_path / "log.json").write_bytes(whole)
    assert Log(tmp_path, lambda frame: None).id == log.id


def test_a_lost_id_is_not_made_anew(tmp_path):
    """A log with segments and without its id would be written to the vault a second time."""
    write(tmp_path, KINDS[:1])
    (tmp_path / "log.json").unlink()

    with pytest.raises(DamagedError, match=r"must have its `log\.json`, got none"):
        Log(tmp_path, lambda frame: None)


def test_a_changed_configuration_is_noticed(tmp_path):
    """A flipped bit in any byte of `config.json` is damage, even where it parses, or changes nothing."""
    made = config(persist_to="run/1", durability="os")
    save_config(tmp_path, made)
    path = tmp_path / "config.json"
    whole, noticed = path.read_bytes(), 0

    for flipped, where in flips(whole, 0, len(whole)):
        path.write_bytes(flipped)
        try:
            found = load_config(tmp_path)
        except DamagedError as error:
            noticed += "`config.json`" in str(error)
        else:  # the last digit of a number may not count
            assert (found, found.created_at) == (made, made.created_at), where
    assert noticed >= len(whole) - 2


def test_a_changed_checkpoint_is_noticed(tmp_path):
    """A flipped bit in any byte is damage: priorities and counters are never silently others."""
    ledger = {"keys": {"k": ["f", 1.5, {"added": 2}]}, "writers": {}}
    Checkpoint("id", Counters(5, 4), {"weights": np.ones(3, np.float32)}, ledger).save(tmp_path)
    whole = (tmp_path / FILE).read_bytes()

    for flipped, where in flips(whole, 0, len(whole)):
        (tmp_path / FILE).write_bytes(flipped)
        with pytest.raises(DamagedError, match=f"`{FILE}`"):
            pytest.fail(f"{where}: {Checkpoint.load(tmp_path, 'id')}")
