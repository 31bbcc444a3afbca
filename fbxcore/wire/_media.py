"""Which format a request means: names, media types, and `Accept`."""

from __future__ import annotations

from fbxcore.errors import InvalidArgumentError, NotSupportedError

FORMATS = {
    "safetensors": "application/x-safetensors",
    "npz": "application/x-npz",
    "msgpack": "application/msgpack",
    "json": "application/json",
}
"""The formats that carry arrays, each with its media type."""

LATER = {
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}

_ALIASES = {
    "application/safetensors": "safetensors",
    "application/vnd.safetensors": "safetensors",
    "application/npz": "npz",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}
_BY_MEDIA_TYPE = {media: name for name, media in FORMATS.items()} | _ALIASES


def known_format(format: str, *, code: str) -> str:
    """Return a format's name, or say which there are."""
    if format in FORMATS:
        return format
    if format in LATER:
        raise NotSupportedError(
            f"`format` must be one of {', '.join(FORMATS)}, got {format!r}, which is not served yet.",
            loc=("format",),
        )
    raise InvalidArgumentError(
        f"`format` must be one of {', '.join(FORMATS)}, got {format!r:.80}.", code=code, loc=("format",)
    )


def format_for(media_type: str) -> str | None:
    """Return the format of a `Content-Type`, or None where there is none."""
    return _BY_MEDIA_TYPE.get(media_type.partition(";")[0].strip().lower())


def negotiate(accept: str | None, query_format: str | None, default: str) -> str:
    """Return the format to answer in: `?format=` first, then `Accept`, then the default.

    Raises:
        InvalidArgumentError: with the code `not_acceptable`, listing the formats there are.
        NotSupportedError: if `query_format` is known but not served yet.
    """
    if query_format is not None:
        return known_format(query_format, code="not_acceptable")
    if not accept or not accept.strip():
        return default
    for media_type in _by_preference(accept):
        if media_type in {"*/*", FORMATS[default], "application/*"}:
            return default
        if (found := format_for(media_type)) is not None:
            return found
    raise InvalidArgumentError(
        f"`Accept` must name one of {', '.join(FORMATS.values())}, got {accept!r:.200}.",
        code="not_acceptable",
        loc=("Accept",),
    )


def _by_preference(accept: str) -> list[str]:
    ranked = []
    for entry in accept.split(","):
        media_type, *parameters = (part.strip() for part in entry.split(";"))
        quality = _quality(parameters)
        if media_type and quality > 0:
            ranked.append((-quality, "*" in media_type, media_type.lower()))
    return [media_type for *_, media_type in sorted(ranked, key=lambda entry: entry[:2])]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
