"""What lies in the files of a vault, as tensorstore tells it: manifest, generations, nodes of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorstore as ts

from fbxcore.errors import DamagedError
from fbxcore.vault.faults import fault, told
from fbxcore.vault.files import label_of
from fbxcore.vault.leaks import released


def told_by(manifest: bytes, label: str) -> dict[str, Any]:
    """Return what a manifest says: the newest generations, and where the older ones are listed."""
    with told(label):
        memory = ts.KvStore.open({"driver": "memory"}, context=ts.Context()).result()
        memory.write("manifest.ocdbt", manifest).result()
        return released(ts.ocdbt.dump(memory).result(), small_json)


def latest(manifest: bytes, label: str) -> dict[str, Any]:
    """Return what a manifest says of the newest generation."""
    versions = told_by(manifest, label)["versions"]
    if not versions or versions[-1]["root"]["statistics"]["num_keys"] == 0:
        raise DamagedError(
            f"Vault '{label}' must have arrays, got a manifest without any. It was never finished.",
            file="manifest.ocdbt",
        )
    return versions[-1]


class Dump:
    """A vault's manifest and nodes, one by one."""

    def __init__(self, path: Path):
        self.label = label_of(path)
        self._files = ts.KvStore.open({"driver": "file", "path": f"{path}/"}, context=ts.Context()).result()

    def manifest(self) -> dict[str, Any]:
        """Return the manifest: the newest generations, and where the older ones are listed."""
        with told(self.label):
            return released(ts.ocdbt.dump(self._files).result(), small_json)

    def node(self, location: str) -> dict[str, Any]:
        """Return a node of the tree of generations or of keys."""
        with told(self.label):
            return released(ts.ocdbt.dump(self._files, location).result(), small_json)

    def root(self, manifest: bytes, generation: int) -> str:
        """Return where the tree of keys of one of a manifest's generations begins."""
        said = told_by(manifest, self.label)
        pending = [*said["versions"], *said["version_tree_nodes"]]
        while pending:
            entry = pending.pop()
            last = entry["generation_number"]
            if "root" in entry and last == generation:
                return entry["root"]["location"]
            if "location" in entry and last - entry["num_generations"] < generation <= last:
                pending.extend(self.node(entry["location"])["entries"])
        raise fault(self.label, f"NOT_FOUND: generation {generation}")


def small_json() -> dict[str, Any]:
    """Return a dictionary in a dictionary, made as all JSON of tensorstore is."""
    return ts.Context.Spec({"cache_pool": {"total_bytes_limit": 1}}).to_json()
