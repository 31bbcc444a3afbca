"""One vault, as the client sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fbxcore.client import _requests as requests
from fbxcore.client._requests import Appended
from fbxcore.client._transport import Transport
from fbxcore.spec import nest


class Vault:
    """A vault of a running server, by its two names."""

    def __init__(self, transport: Transport, path: tuple[str, str], format: str):
        self.vault_name, self.vault_uid = path[0].replace("~", "/"), path[1]
        self._path = ("vaults", *path)
        self._transport = transport
        self._format = format

    def __repr__(self) -> str:
        return f"Vault({self.vault_name + '/' + self.vault_uid!r})"

    def describe(self) -> dict[str, Any]:
        """Return what the server says of the vault: spec, rows, length, versions, …"""
        return self._json("GET")

    def add(
        self,
        experience: Any,
        *,
        idempotency_key: str | None = None,
        writer: str | None = None,
        sequence: int | None = None,
        cast: str | None = None,
    ) -> Appended:
        """Append experience `[B, T, ...]`, nested or flat, exactly once."""
        key = idempotency_key or (None if writer is not None else requests.new_key())
        request = requests.send_arrays(
            "POST", *self._path, "experience",
            arrays=requests.leaves_of(experience), format=self._format, key=key,
            query={"writer": writer, "sequence": sequence, "cast": cast},
        )  # fmt: skip
        return requests.read_fields(Appended, self._transport.send(request))

    def slice(
        self,
        ref: str | int | None = None,
        *,
        start: int | None = None,
        stop: int | None = None,
        step: int | None = None,
        timesteps: int | None = None,
        percentiles: tuple[float, float] | None = None,
        rows: str | None = None,
        leaves: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Return a part of a version as nested arrays `[B, t, ...]`.

        Args:
            ref: a version's number, digest or tag, `latest`, or `head`, which is what is there now.
            start, stop, step: half-open, by Python's slice rules on the version's length.
            timesteps: the last n instead.
            percentiles: from a to b per cent of the length instead.
            rows: `"a:b"`.
            leaves: names joined with `/`; all where none are given.
        """
        query = {
            "ref": ref, "start": start, "stop": stop, "step": step, "timesteps": timesteps,
            "percentiles": percentiles, "rows": rows, "leaves": leaves,
        }  # fmt: skip
        request = requests.get_arrays(*self._path, "slice", format=self._format, query=query)
        return nest(requests.read_arrays(self._transport.send(request)))

    def versions(self) -> list[dict[str, Any]]:
        """Return all versions, as the server lists them."""
        return list(requests.pages(self._transport, *self._path, "versions"))

    def version(self, ref: str | int) -> dict[str, Any]:
        """Return one version."""
        return self._json("GET", "versions", str(ref))

    def create_version(self, message: str = "", tags: Sequence[str] = ()) -> dict[str, Any]:
        """Commit all that was acknowledged and give it a number."""
        return self._json("POST", "versions", content={"message": message, "tags": list(tags)})

    def delete_version(self, ref: str | int) -> None:
        """Take a version's number away; refused while a tag names it."""
        self._json("DELETE", "versions", str(ref))

    def fork(self, name: str, ref: str | int | None = None, **part: Any) -> Vault:
        """Copy timesteps of a version into a new vault `vault_name/vault_uid`, and return that.

        Args:
            ref: as of `slice`.
            part: `start`, `stop`, `step`, `timesteps` or `percentiles`, as of `slice`.
        """
        path = requests.vault_path(name)
        names = {"vault_name": path[0].replace("~", "/"), "vault_uid": path[1]}
        self._json("POST", "fork", content={**names, "ref": ref, **part})
        return Vault(self._transport, path, self._format)

    def sweep(
        self,
        *,
        keep: int | None = None,
        older_than_days: float | None = None,
        retain_steps: int | None = None,
        grace_s: float = 900,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Give back the bytes that no version needs, and return how many.

        Args:
            keep: the newest so many versions stay; with `older_than_days`, younger ones too. Tagged ones
                always stay, and all of them where neither is given.
            retain_steps: the newest so many timesteps stay, at least; older ones are given back in blocks
                of 1,024, save in versions.
            grace_s: what was in use less than this ago stays, so that readers go on.
            dry_run: delete nothing.
        """
        content = {
            "keep": keep,
            "older_than_days": older_than_days,
            "retain_steps": retain_steps,
            "grace_s": grace_s,
        }
        return self._json("POST", "gc", content=content, query={"dry_run": dry_run})

    def adopt(self) -> dict[str, Any]:
        """Go on behind what another program wrote to the vault, which must have stopped."""
        return self._json("POST", "adopt")

    def delete(self, *, dry_run: bool = False) -> dict[str, Any]:
        """Move the vault to the trash, from where `restore` brings it back, or only say what would go."""
        return self._json("DELETE", query={"dry_run": dry_run})

    def restore(self) -> dict[str, Any]:
        """Bring the vault back from the trash, and return what `describe` does."""
        return self._json("POST", "restore")

    def tags(self) -> dict[str, int]:
        """Return the tags, each with the number of its version."""
        return {tag["tag"]: tag["version"] for tag in self._json("GET", "tags")}

    def set_tag(self, tag: str, ref: str | int = "latest", *, protected: bool = False) -> dict[str, Any]:
        """Let a tag name a version; a protected one is not moved by accident."""
        return self._json("PUT", "tags", tag, content={"version": ref, "protected": protected})

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its version stays."""
        self._json("DELETE", "tags", tag)

    def _json(self, method: str, *path: str, content: Any = None, query: Any = None) -> Any:
        request = requests.send_json(method, *self._path, *path, content=content, query=query)
        return requests.read_json(self._transport.send(request))
