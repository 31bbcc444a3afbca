"""Starts the actors, learns, tags versions, shows the progress, and stops everything again."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import queue
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from app.demo.buffers import CARTPOLE, PONG, VAULTS, create_buffer
from app.demo.learner import Learner
from fbxcore.client import Buffer, Client
from fbxcore.errors import FbxError, NotEnoughDataError, NotFoundError, NotSupportedError, UnavailableError

VERSION_S = 10.0
BATCHES_A_SECOND = 15
_STOP_S = 5.0
_NEEDED = ("gymnasium", "ale_py", "cv2")


@dataclass
class Actors:
    """The processes that play, and what they share with this one."""

    stop: Any
    failure: Any
    counts: dict[str, Any]
    processes: list[Any] = field(default_factory=list)

    def check(self) -> None:
        """Raise what ended an actor."""
        try:
            raise FbxError(self.failure.get_nowait())
        except queue.Empty:
            pass
        for process in self.processes:
            if process.exitcode:
                raise FbxError(f"The actor {process.name} must run on, got exit status {process.exitcode}.")

    def end(self) -> None:
        """Let every actor finish its batch; end those that do not."""
        self.stop.set()
        for process in self.processes:
            process.join(_STOP_S)
            if process.is_alive():
                process.terminate()
                process.join()


def play(url: str, token: str | None, seconds: float, console: Console) -> None:
    """Play for some seconds, or until Ctrl-C."""
    check_installed()
    with _told_to_stop() as told, Client(url, token) as client:
        client.buffers()  # nobody there is told before anything is started
        actors = start_actors(url, token)
        try:
            with _progress(console) as progress:
                _run(client, actors, seconds, progress, told)
        finally:
            actors.end()
        _tag(client, "Demo, the end")
        console.print(f"The demo {'was stopped' if told else 'is over'}.", _summary(client), highlight=False)
        console.print(f"Look at it: {client.url}", highlight=False)


@contextlib.contextmanager
def _told_to_stop() -> Iterator[list[int]]:
    """Give a list that the first Ctrl-C puts its number into; another one interrupts as ever.

    An exception may be raised anywhere, also where it is swallowed or leaves a process behind.
    """
    told: list[int] = []

    def note(number: int, _: Any) -> None:
        told.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)


def check_installed() -> None:
    """Say what to install where an environment is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotSupportedError(
            f"The demo must have its environments, got no {', '.join(missing)}. Install `flashdeck[demo]`.",
        )


def start_actors(url: str, token: str | None) -> Actors:
    """Start a process for each buffer; a fresh interpreter, never a fork of this one.

    Ctrl-C reaches every process of a terminal; these begin with it blocked, since they are told by this one.
    """
    from app.demo.actors import act

    spawn = multiprocessing.get_context("spawn")
    actors = Actors(spawn.Event(), spawn.Queue(), {name: spawn.Value("q", 0) for name in VAULTS})
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for seed, name in enumerate(VAULTS):
            arguments = (name, url, token, seed, actors.stop, actors.counts[name], actors.failure)
            process = spawn.Process(target=act, args=arguments, name=name, daemon=True)
            process.start()
            actors.processes.append(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return actors


def _run(client: Client, actors: Actors, seconds: float, progress: Progress, told: list[int]) -> None:
    task = progress.add_task("Making the buffers …", total=seconds)
    learner, batches = Learner(), 0
    cartpole = create_buffer(client, CARTPOLE)  # which its actor does, too: the same one
    started = time.monotonic()
    next_version = started + min(VERSION_S, seconds / 3)
    while not told and (now := time.monotonic()) < started + seconds:
        actors.check()
        batches += _learn(learner, cartpole)
        if batches % BATCHES_A_SECOND == 1:
            _look(client)
        if now >= next_version:
            _tag(client, f"Demo after {now - started:.0f} s")
            next_version = now + VERSION_S
        progress.update(task, completed=now - started, description=_line(actors, learner, batches))
        time.sleep(max(0.0, now + 1 / BATCHES_A_SECOND - time.monotonic()))
    progress.update(task, completed=seconds)


def _learn(learner: Learner, cartpole: Buffer) -> int:
    """Learn from a batch where there is one; return how many that was."""
    try:
        learner.learn(cartpole, cartpole.sample(beta=0.4))
    except NotEnoughDataError:
        return 0
    except UnavailableError as error:
        if error.status is None:
            raise
        return 0
    return 1


def _look(client: Client) -> None:
    """Sample Pong where there is some already; nobody learns from it here."""
    with contextlib.suppress(NotFoundError, NotEnoughDataError):
        client.buffer(PONG).sample()


def _tag(client: Client, message: str) -> None:
    """Give the vaults there are a version each; the tag `demo` moves along."""
    for name in VAULTS.values():
        with contextlib.suppress(NotFoundError):
            version = client.vault(name).create_version(message)
            client.vault(name).set_tag("demo", version["version"])


def _progress(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)


def _line(actors: Actors, learner: Learner, batches: int) -> str:
    counts = {name: count.value for name, count in actors.counts.items()}
    return (
        f"CartPole {counts[CARTPOLE]:,} steps · Pong {counts[PONG]:,} frames · "
        f"{batches:,} batches · TD error {learner.error:.3f}"
    )


def _summary(client: Client) -> str:
    found = {buffer["name"]: buffer for buffer in client.buffers()}
    parts = [
        f"{name} holds {found[name]['size']:,} of {found[name]['capacity']:,} steps"
        for name in VAULTS
        if name in found
    ]
    return f"{'; '.join(parts) or 'Nothing was stored'}."
