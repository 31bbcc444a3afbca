"""A query string read by hand: each parameter once, checked, and none left over; and a header like it."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from fbxcore.errors import InvalidArgumentError, NotSupportedError

_FLAGS = {"true": True, "1": True, "yes": True, "": True, "false": False, "0": False, "no": False}


class Query:
    """The parameters of one request; each is taken out, and `done` refuses what nobody took."""

    def __init__(self, query_string: bytes):
        self.given: dict[str, str] = {}
        if not query_string:
            return
        for name, value in _pairs(query_string.decode("latin-1")):
            if name in self.given:
                raise _refused(name, "be given once", value)
            self.given[name] = value

    def text(self, name: str) -> str | None:
        """Take a parameter as it is."""
        return self.given.pop(name, None)

    def integer(self, name: str, *, low: int, high: int) -> int | None:
        """Take a whole number of `low` to `high`."""
        if (text := self.given.pop(name, None)) is None:
            return None
        if not text.lstrip("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
            raise _refused(name, "be a whole number", text)
        if not low <= (value := int(text)) <= high:
            raise _refused(name, f"be from {low} to {high}", text)
        return value

    def number(self, name: str, *, low: float, high: float) -> float | None:
        """Take a number of `low` to `high`."""
        if (text := self.given.pop(name, None)) is None:
            return None
        try:
            value = float(text)
        except ValueError:
            raise _refused(name, "be a number", text) from None
        if not low <= value <= high:
            raise _refused(name, f"be from {low:g} to {high:g}", text)
        return value

    def flag(self, name: str) -> bool:
        """Take `true` or `false`; false where it is not given."""
        if (text := self.given.pop(name, None)) is None:
            return False
        if text.lower() not in _FLAGS:
            raise _refused(name, "be true or false", text)
        return _FLAGS[text.lower()]

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """Take one of some words."""
        text = self.given.pop(name, None)
        if text is not None and text not in choices:
            raise _refused(name, f"be one of {', '.join(choices)}", text)
        return text

    def done(self) -> None:
        """Refuse parameters that nothing here serves."""
        for name in self.given:
            raise NotSupportedError(
                f"`{name[:200]}` must be left out: this resource serves no such parameter.",
                loc=("query", name[:200]),
            )


def idempotency_key(request: Request) -> str | None:
    """Return the `Idempotency-Key`, given once, or more than once with the same key."""
    found = None
    for name, value in request.scope["headers"]:
        if name == b"idempotency-key":
            if found is not None and value != found:
                raise InvalidArgumentError(
                    f"`Idempotency-Key` must be one key, got {_text(found)!r:.80} and {_text(value)!r:.80}.",
                    loc=("header", "idempotency-key"),
                )
            found = value
    return None if found is None else _text(found)


def _text(header: bytes) -> str:
    return header.decode("latin-1")


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return names and values; what holds no escapes, nearly every query, is only split."""
    if "%" in text or "+" in text or ";" in text:
        return parse_qsl(text, keep_blank_values=True)
    return [tuple(part.partition("=")[::2]) for part in text.split("&") if part]


def _refused(name: str, rule: str, value: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"`{name[:200]}` must {rule}, got {value!r:.80}.", loc=("query", name[:200]))
