"""An independent writer: one environment's steps, gathered, numbered and sent in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fbxcore.client import _requests as requests
from fbxcore.client._requests import Added
from fbxcore.client.errors import ConflictError
from fbxcore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fbxcore.client._buffer import Buffer


class Writer:
    """One writer of a buffer whose `writers` are independent; for one thread.

    It begins clean: an episode that an earlier life of the same name left open is ended as a cut, since the
    environment has started anew. What could not be sent stays, and goes first at the next call, under the
    same number: nothing is lost or there twice.
    """

    def __init__(self, buffer: Buffer, name: str, *, batch_steps: int, timeout_ms: int):
        if batch_steps < 1:
            raise InvalidArgumentError(
                f"`batch_steps` must be at least 1, got {batch_steps!r}.", loc=("batch_steps",)
            )
        self.name = name
        self._buffer = buffer
        self._batch_steps, self._timeout_ms = batch_steps, timeout_ms
        self._gathered: list[dict[str, np.ndarray]] = []  # [T, ...] each
        self._no_steps: dict[str, np.ndarray] = {}
        self._steps = 0
        self._unsent: tuple[int, dict[str, np.ndarray], str | None] | None = None
        self._is_open = False
        buffer.end_episode(name)
        known = [writer["sequence"] for writer in buffer.writers(name) if writer["writer"] == name]
        self._sequence = known[0] or 0 if known else 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, experience: Any) -> Added | None:
        """Add steps; they are sent once `batch_steps` are gathered. Returns the answer, if there is one.

        Args:
            experience: nested or flat, leaves `[T, ...]` of consecutive steps.
        """
        leaves = requests.leaves_of(experience)
        self._gathered.append(leaves)
        self._no_steps = {name: leaf[:0] for name, leaf in leaves.items()}  # for an end alone
        self._steps += len(next(iter(leaves.values())))
        self._is_open = True
        return self._send(None, {}) if self._steps >= self._batch_steps else None

    def end(self, how: str, final: Any = None) -> Added | None:
        """End the episode: `terminated`, `truncated` or `cut`. Returns the answer; None if none was open.

        Args:
            final: what was observed after the last step, `[...]`, of the leaves for which it is known.
        """
        if not self._is_open:
            return None
        last = {f"final/{name}": leaf for name, leaf in requests.leaves_of(final or {}).items()}
        return self._send(how, last)

    def flush(self) -> Added | None:
        """Send what was gathered; None where there is nothing."""
        return self._send(None, {}) if self._gathered or self._unsent else None

    def describe(self, metadata: dict[str, Any]) -> None:
        """Set the metadata of the open episode, a JSON object; sends what was gathered first."""
        self.flush()
        self._buffer.describe_episode(self.name, metadata)

    def close(self) -> None:
        """Send what was gathered; an episode that is still open is cut."""
        self.end("cut")
        self.flush()

    def _send(self, end: str | None, final: dict[str, np.ndarray]) -> Added | None:
        answer = self._send_unsent()
        if self._gathered or end is not None:
            self._sequence += 1
            self._unsent = (self._sequence, self._joined() | final, end)
            self._gathered, self._steps, self._is_open = [], 0, end is None
            answer = self._send_unsent()
        return answer

    def _send_unsent(self) -> Added | None:
        if self._unsent is None:
            return None
        sequence, leaves, end = self._unsent
        try:
            answer = self._buffer.add(
                leaves, writer=self.name, sequence=sequence, end=end, timeout_ms=self._timeout_ms
            )
        except ConflictError as error:
            if error.code != "no_episode":
                raise
            answer = None  # the server has ended it already, for the writer was idle
        self._unsent = None
        return answer

    def _joined(self) -> dict[str, np.ndarray]:
        parts = self._gathered or [self._no_steps]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
