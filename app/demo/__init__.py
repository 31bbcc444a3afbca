"""The demo: real Gymnasium environments fill a running server.

Two actors, each a process of its own, POST experience: CartPole on eight rows into a prioritised buffer,
Pong frames into a trajectory buffer. A learner in this process samples CartPole and sets priorities from
a small temporal-difference error, and every ten seconds both vaults get a version.
"""

from app.demo.play import play

__all__ = ["play"]
