"""Each request counts once, whatever is repeated and in whatever order."""

import asyncio
import time

import pytest

from fbxcore.errors import ConflictError, InvalidArgumentError
from fbxcore.live.durable import ledger as ledger_module
from fbxcore.live.durable.ledger import Ledger, check_identity

pytestmark = pytest.mark.anyio


def identity(key=None, body="a", writer=None, sequence=None):
    """Return the keyword arguments that name a request."""
    return {"key": key, "body_fingerprint": body, "writer": writer, "sequence": sequence}


def begin(ledger, **who):
    """Note a new request and return what to call with its answer."""
    return ledger.begin(time.time(), **identity(**who))


async def test_a_repeated_key_gets_the_first_answer():
    """The second request with a key is not new."""
    ledger = Ledger()
    assert await ledger.earlier(**identity("k")) is None
    begin(ledger, key="k")({"added": 3})

    assert await ledger.earlier(**identity("k")) == {"added": 3}


async def test_a_parallel_repeat_waits_for_the_first():
    """A repeat that comes while the first is being written gets its answer once there is one."""
    ledger = Ledger()
    first = begin(ledger, key="k")
    repeat = asyncio.create_task(ledger.earlier(**identity("k")))
    await asyncio.sleep(0.01)
    assert not repeat.done()
    first({"added": 3})

    assert await repeat == {"added": 3}


async def test_another_body_under_a_key_is_a_conflict():
    """A key stands for one body."""
    ledger = Ledger()
    begin(ledger, key="k")({})

    with pytest.raises(ConflictError, match="`Idempotency-Key` must be new for another body"):
        await ledger.earlier(**identity("k", body="b"))


async def test_a_failed_request_frees_its_key():
    """What was not written may be sent again."""
    ledger = Ledger()
    first = begin(ledger, key="k")
    repeat = asyncio.create_task(ledger.earlier(**identity("k")))
    await asyncio.sleep(0)
    first(None)

    assert await repeat is None


async def test_a_writers_lower_sequence_is_a_duplicate():
    """Sequences grow; gaps are allowed, repeats and lower ones are not new."""
    ledger = Ledger()
    begin(ledger, writer="w", sequence=5)({})

    assert await ledger.earlier(**identity(writer="w", sequence=5)) == {}
    assert await ledger.earlier(**identity(writer="w", sequence=2)) == {}
    assert await ledger.earlier(**identity(writer="w", sequence=9)) is None
    assert await ledger.earlier(**identity(writer="other", sequence=1)) is None


async def test_the_last_sequence_again_gets_its_answer():
    """A writer that lost the answer gets it; another body under that number is a conflict."""
    ledger = Ledger()
    begin(ledger, writer="w", sequence=5)({"added": 3})

    assert await ledger.earlier(**identity(writer="w", sequence=5)) == {"added": 3}
    with pytest.raises(ConflictError, match="`sequence` must be new for another body, got 5 again"):
        await ledger.earlier(**identity(writer="w", sequence=5, body="b"))


async def test_a_failed_sequence_may_be_sent_again():
    """A writer's sequence counts only once it was acknowledged."""
    ledger = Ledger()
    first = begin(ledger, writer="w", sequence=5)
    repeat = asyncio.create_task(ledger.earlier(**identity(writer="w", sequence=5)))
    await asyncio.sleep(0)
    first(None)

    assert await repeat is None
    assert ledger.last_sequence("w") is None


async def test_one_writer_too_many_is_refused_before_anything_is_taken(monkeypatch):
    """Names are kept for good, so there are only so many; those that are known go on."""
    monkeypatch.setattr(ledger_module, "MAX_WRITERS", 1)
    ledger = Ledger()
    begin(ledger, writer="w", sequence=1)({})

    with pytest.raises(ConflictError, match="`writer` must be one of at most 1, got a new one, 'v'"):
        await ledger.earlier(**identity(writer="v", sequence=1))
    assert await ledger.earlier(**identity(writer="w", sequence=2)) is None


async def test_a_checkpoint_keeps_keys_and_writers():
    """What was saved is known to a fresh ledger."""
    ledger, fresh = Ledger(), Ledger()
    begin(ledger, key="k")({"added": 1})
    begin(ledger, writer="w", sequence=7)({})
    fresh.load(ledger.to_json())

    assert await fresh.earlier(**identity("k")) == {"added": 1}
    assert fresh.writers() == {"w": 7}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"key": ""}, "Idempotency-Key"),
        ({"key": "x" * 256}, "Idempotency-Key"),
        ({"writer": ""}, "writer"),
        ({"writer": "w", "sequence": -1}, "sequence"),
        ({"sequence": 1}, "sequence"),
        ({"writer": "w"}, "sequence"),
    ],
)
async def test_an_identity_that_cannot_be_kept_is_refused(given, named):
    """The message names the field."""
    who = {"key": None, "writer": None, "sequence": None} | given

    with pytest.raises(InvalidArgumentError, match=f"`{named}`"):
        check_identity(**who)
