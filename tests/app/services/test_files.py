"""Paths stay under the data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.services.files import inside
from app.services.lock import DataLock, read_holder
from fbxcore.errors import ConflictError, InvalidArgumentError


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "a\\b", "a\0b", "x" * 256, "../x", "/etc"])
def test_a_part_that_is_no_plain_name_is_refused(tmp_path: Path, part: str) -> None:
    """Nothing that could lead elsewhere is joined."""
    with pytest.raises(InvalidArgumentError, match="`name` must be a plain file name"):
        inside(tmp_path, "ok", part)


def test_a_link_on_the_way_is_refused(tmp_path: Path) -> None:
    """Also one that leads back inside, at any depth."""
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real/deep").symlink_to("/etc")

    assert inside(tmp_path, "real", "sub") == tmp_path / "real/sub"
    for parts in (["link"], ["link", "sub"], ["real", "deep"]):
        with pytest.raises(InvalidArgumentError, match="through a link"):
            inside(tmp_path, *parts)


def test_a_lock_is_held_once_and_told(tmp_path: Path) -> None:
    """A second take is refused with the holder's address; after release it can be taken."""
    one, two = DataLock(tmp_path), DataLock(tmp_path)
    one.take("http://127.0.0.1:1")

    with pytest.raises(ConflictError, match="http://127.0.0.1:1"):
        two.take("http://127.0.0.1:2")
    assert read_holder(tmp_path)["address"] == "http://127.0.0.1:1"
    one.release()
    two.take("http://127.0.0.1:2")
    two.release()
    assert read_holder(tmp_path) is None
