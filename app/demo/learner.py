"""The learner: a linear Q function of CartPole, learnt from prioritised samples."""

from __future__ import annotations

import numpy as np

from fbxcore.client import Buffer, Sample

DISCOUNT = 0.97
LEARNING_RATE = 0.02
_SCALE = np.array([2.4, 3.0, 0.21, 3.0], np.float32)
_MIN_PRIORITY = 1e-3


class Learner:
    """Q(s, a) = w_a · φ(s), with φ(s) the scaled observation and a one."""

    def __init__(self) -> None:
        self.weights = np.zeros((5, 2), np.float32)
        self.error = float("nan")  # mean absolute temporal-difference error of the last batch

    def learn(self, buffer: Buffer, sample: Sample) -> None:
        """Take one step and tell the buffer how surprising each transition was."""
        errors = self.update(sample)
        self.error = float(np.abs(errors).mean())
        buffer.set_priorities(sample, np.abs(errors) + _MIN_PRIORITY)

    def update(self, sample: Sample) -> np.ndarray:
        """Move the weights along the errors and return them.

        Returns:
            δ = r + γ (1 − terminated) max Q(s′) − Q(s, a), `[N]`; 0 where the episode was cut short.
        """
        first, second = sample.experience["first"], sample.experience["second"]
        features = _features(first["obs"])
        chosen = np.arange(len(features)), first["action"]
        bootstrap = (_features(second["obs"]) @ self.weights).max(axis=1)
        target = first["reward"] + DISCOUNT * np.where(first["terminated"], 0, bootstrap)
        errors = target - (features @ self.weights)[chosen]
        errors[first["truncated"]] = 0  # what comes next belongs to another episode
        importance = 1 if sample.weights is None else sample.weights
        step = np.zeros((len(features), 2), np.float32)
        step[chosen] = importance * np.clip(errors, -1, 1)
        self.weights += LEARNING_RATE * features.T @ step / len(features)
        return errors


def _features(obs: np.ndarray) -> np.ndarray:
    ones = np.ones((len(obs), 1), np.float32)
    return np.concatenate([obs / _SCALE, ones], axis=1)
