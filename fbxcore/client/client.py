"""The client: buffers and vaults of one running server."""

from __future__ import annotations

import os
from typing import Any

from fbxcore.client import _requests as requests
from fbxcore.client._buffer import Buffer
from fbxcore.client._transport import Transport
from fbxcore.client._vault import Vault
from fbxcore.errors import InvalidArgumentError
from fbxcore.wire import FORMATS


class Client:
    """A client of one server.

    Example:
        >>> client = Client("http://127.0.0.1:8000")
        >>> client.url
        'http://127.0.0.1:8000'
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        token: str | None = None,
        timeout: float = 30.0,
        *,
        format: str = "safetensors",
    ):
        """Name the server; nothing is sent yet.

        Args:
            url: where the server answers, with the path below which a proxy serves it.
            token: its token; by default that of the environment variable `FLASHDECK_TOKEN`.
            timeout: seconds to wait for an answer, beyond what a call lets the server wait.
            format: how arrays travel: `safetensors`, `npz`, `msgpack` or `json`.
        """
        if format not in FORMATS:
            raise InvalidArgumentError(
                f"`format` must be one of {', '.join(FORMATS)}, got {format!r}.", loc=("format",)
            )
        self._transport = Transport(url, token or os.environ.get("FLASHDECK_TOKEN"), timeout)
        self._format = format

    @property
    def url(self) -> str:
        """Where the server answers."""
        return self._transport.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens a new one."""
        self._transport.close()

    def create_buffer(
        self,
        name: str,
        kind: str | None = None,
        spec: Any = None,
        *,
        from_: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Buffer:
        """Create a buffer, or find the one of that name and the same configuration.

        Args:
            name: letters, digits, dots, dashes and underscores.
            kind: `flat`, `item`, `trajectory`, `prioritised_flat`, …; it may be left out with a snapshot.
            spec: nested; a leaf is `{"shape": [...], "dtype": "..."}`, or an array of one timestep. It may be
                left out with `from_`.
            from_: what it begins with: `{"vault": "name/uid", "ref": "v3", "percentiles": [0, 50]}`, or
                `{"snapshot": id}` to be exactly what another buffer was.
            arguments: the kind's own (`max_length`, `min_length`, …), `persist_to`, `durability`, ….

        Raises:
            ConflictError: with the code `config_differs`, if there is one of another configuration.
        """
        given = {"kind": kind, "spec": requests.spec_of(spec), "from": from_}
        content = {"name": name, **arguments}
        content |= {field: value for field, value in given.items() if value is not None}
        self._json("PUT", "buffers", name, content=content)
        return self.buffer(name)

    def buffer(self, name: str) -> Buffer:
        """Return a buffer by name; nothing is sent yet."""
        return Buffer(self._transport, name, self._format)

    def buffers(self) -> list[dict[str, Any]]:
        """Return all buffers, as the server describes them."""
        return list(requests.pages(self._transport, "buffers"))

    def create_vault(self, name: str, spec: Any, **arguments: Any) -> Vault:
        """Create a vault `vault_name/vault_uid` for appending to, or find the one of that name and structure.

        Args:
            name: its two names, each of letters, digits, dots, dashes and underscores.
            spec: as of a buffer.
            arguments: `rows`, `fps`, `metadata`; `chunk_steps`, `compression` of a new one.

        Raises:
            ConflictError: with the code `config_differs`, if there is one of another structure.
        """
        path = requests.vault_path(name)
        content = {"spec": requests.spec_of(spec), **arguments}
        self._json("PUT", "vaults", *path, content=content)
        return Vault(self._transport, path, self._format)

    def vault(self, name: str, vault_uid: str | None = None) -> Vault:
        """Return a vault by `vault_name/vault_uid` or by its two names; nothing is sent yet."""
        return Vault(self._transport, requests.vault_path(name, vault_uid), self._format)

    def vaults(self, query: str | None = None) -> list[dict[str, Any]]:
        """Return all vaults, as the server describes them, or those whose names match."""
        return list(requests.pages(self._transport, "vaults", query={"query": query}))

    def scan(self) -> dict[str, Any]:
        """Let the server look for vaults in its folders now."""
        return self._json("POST", "scan")

    def create_backup(self) -> dict[str, Any]:
        """Let the server make a backup of everything as of now, in its data directory."""
        return self._json("POST", "backups")

    def delete_backup(self, id: str) -> None:
        """Delete a backup in the server's data directory."""
        self._json("DELETE", "backups", id)

    def _json(self, method: str, *path: str, content: Any = None) -> Any:
        return requests.read_json(self._transport.send(requests.send_json(method, *path, content=content)))
