"""Settings: read from the environment, documented, and never shared."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import Settings

DOCS = Path(__file__).parents[2] / "docs/reference/settings.md"


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_each_setting_is_in_the_docs(name: str) -> None:
    """The reference has a row for its variable, with the default."""
    assert f"`FLASHDECK_{name.upper()}`" in DOCS.read_text()
    assert Settings.model_fields[name].description


def test_the_environment_is_read_with_our_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are comma-separated; an empty token is none."""
    monkeypatch.setenv("FLASHDECK_ALLOWED_HOSTS", "a.example, b.example,")
    monkeypatch.setenv("FLASHDECK_TOKEN", "")
    monkeypatch.setenv("FLASHDECK_PORT", "9000")
    monkeypatch.setenv("PORT", "1")
    settings = Settings()

    assert settings.allowed_hosts == ("a.example", "b.example")
    assert (settings.token, settings.port) == (None, 9000)


def test_the_token_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing settings does not tell it."""
    assert "hush" not in repr(Settings(token="hush"))


@pytest.mark.parametrize(
    ("name", "value"), [("port", -1), ("port", "x"), ("device", "tpu9"), ("max_rows", 0)]
)
def test_a_wrong_setting_is_refused(name: str, value: object) -> None:
    """The error names it."""
    with pytest.raises(ValidationError, match=name):
        Settings(**{name: value})


def test_the_database_lies_in_the_data_directory_unless_said(tmp_path: Path) -> None:
    """SQLite by default, or the address given."""
    assert Settings(data=tmp_path).url == f"sqlite+aiosqlite:///{tmp_path}/flashdeck.db"
    assert Settings(database_url="postgresql://u@h/d").url == "postgresql://u@h/d"
