"""A slow, plain model of every kind of buffer: all timesteps ever added, and what follows from them.

It knows no ring and no tree. A timestep is named by its row and its number in that row, counted from 0; an
item is named by its row and its first timestep.
"""

import numpy as np

from fbxcore.buffers.layout import Layout

ROW = 1_000_000  # a timestep's `count` is its row times this, and its number
SPEC = {"count": ((), np.int32), "image": ((2,), np.uint8), "reward": ((), np.float32)}


def leaves_of(count: np.ndarray) -> dict[str, np.ndarray]:
    """Return the leaves of timesteps of given counts."""
    image = np.stack([count % 251, count // ROW], -1).astype(np.uint8)
    return {"count": count.astype(np.int32), "image": image, "reward": (count / 4).astype(np.float32)}


class Model:
    """What a buffer of a layout must hold and may draw."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.added = [0] * layout.rows  # timesteps ever added to each row
        self.weights: dict[tuple[int, int], float] = {}  # of each item that was whole once
        self.greatest = 1.0

    def add(self, lengths: list[int], width: int) -> dict[str, np.ndarray]:
        """Append timesteps to each row; return them as `[B, width, ...]`, with rubbish behind them."""
        count = np.full((self.layout.rows, width), -1)
        for row, length in enumerate(lengths):
            count[row, :length] = row * ROW + self.added[row] + np.arange(length)
            self.added[row] += length
        for item in self.whole():
            self.weights.setdefault(item, self.greatest)
        return leaves_of(count)

    def ring(self) -> np.ndarray:
        """Return the count in every slot `[B, T]`, -1 where nothing was written."""
        ring = np.full((self.layout.rows, self.layout.time_axis), -1)
        for row, added in enumerate(self.added):
            for step in range(max(0, added - self.layout.time_axis), added):
                ring[row, step % self.layout.time_axis] = row * ROW + step
        return ring

    def whole(self) -> list[tuple[int, int]]:
        """Return the items whose timesteps are all held and that start where the layout lets items start."""
        layout, items = self.layout, []
        for row, added in enumerate(self.added):
            oldest = max(0, added - layout.time_axis)
            origin = oldest if layout.priority_exponent is None else 0
            items += [
                (row, start)
                for start in range(oldest, added - layout.sequence_length + 1)
                if (start - origin) % layout.period == 0
            ]
        return items

    def set_priorities(self, items: list[tuple[int, int]], priorities: list[float]) -> None:
        """Set the priorities of items one by one; what is not whole or no priority changes nothing."""
        whole = set(self.whole())
        for item, priority in zip(items, priorities, strict=True):
            if item in whole and np.isfinite(priority) and priority >= 0:
                self.weights[item] = float(priority) ** self.layout.priority_exponent if priority else 0.0
                self.greatest = max(self.greatest, self.weights[item])

    def item_at(self, index: int) -> tuple[int, int]:
        """Return the item that an index means now: the last one that starts in its slot."""
        layout = self.layout
        row, slot = index // layout.items_per_row, index % layout.items_per_row * layout.stride
        newest = self.added[row] - 1
        return row, newest - (newest - slot) % layout.time_axis

    def chances(self) -> dict[tuple[int, int], float]:
        """Return the probability of every item that may be drawn."""
        whole = self.whole()
        if self.layout.priority_exponent is not None:
            total = sum(self.weights[item] for item in whole)
            return {item: self.weights[item] / total for item in whole if self.weights[item] > 0}
        of_row = [sum(1 for item in whole if item[0] == row) for row in range(self.layout.rows)]
        return {(row, start): 1 / self.layout.rows / of_row[row] for row, start in whole}

    def can_sample(self) -> bool:
        """Return whether every row holds enough, and something has a weight."""
        held = min(min(added, self.layout.time_axis) for added in self.added)
        return held >= self.layout.min_time_axis and bool(self.chances())
