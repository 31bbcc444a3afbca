"""The demo plays real environments, stores only steps that were played, and leaves everything consistent."""

import itertools
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from app.demo import actors
from app.demo.learner import DISCOUNT, LEARNING_RATE, Learner
from fbxcore.client import Client, Sample
from tests.served import BIN, environment, serve


def test_cartpole_steps_follow_one_another():
    """On each row the next observation follows from the last by CartPole's own physics, save after an end."""
    batches = list(itertools.islice(actors.play_cartpole(0), 12))
    steps = {name: np.concatenate([batch[name] for batch in batches], axis=1) for name in batches[0]}
    position, velocity = steps["obs"][..., 0], steps["obs"][..., 1]
    moved = position[:, :-1] + 0.02 * velocity[:, :-1]  # Euler's step of CartPole
    ended = (steps["terminated"] | steps["truncated"])[:, :-1]

    assert ended.any()
    np.testing.assert_allclose(position[:, 1:][~ended], moved[~ended], atol=1e-5)
    assert (np.abs(steps["obs"][:, 1:][ended]) <= 0.05).all()  # a fresh episode begins near zero
    assert (steps["reward"] == 1).all()  # a step that was no transition would have 0


def test_pong_frames_are_what_the_spec_says():
    """[1, 16, 84, 84] of uint8, and rewards of -1, 0 and 1."""
    batch = next(actors.play_pong(0))

    assert batch["frame"].shape == (1, 16, 84, 84)
    assert batch["frame"].dtype == np.uint8
    assert set(np.unique(batch["reward"])) <= {-1.0, 0.0, 1.0}
    assert len(np.unique(batch["frame"][0].reshape(16, -1), axis=0)) > 1


def _sample(terminated, truncated):
    obs = np.zeros((1, 4), np.float32)
    first = {
        "obs": obs, "action": np.array([1]), "reward": np.array([1.0], np.float32),
        "terminated": np.array([terminated]), "truncated": np.array([truncated]),
    }  # fmt: skip
    return Sample({"first": first, "second": {"obs": obs}})


@pytest.mark.parametrize(
    ("terminated", "truncated", "error"),
    [(False, False, 1 + DISCOUNT * 2.0 - 0.5), (True, False, 1 - 0.5), (False, True, 0.0)],
)
def test_the_error_is_the_temporal_difference(terminated, truncated, error):
    """By hand: Q(s, 1) is 0.5 and max Q(s') is 2; an end stops the bootstrap, a cut has no error."""
    learner = Learner()
    learner.weights[4] = [2.0, 0.5]

    assert learner.update(_sample(terminated, truncated)) == pytest.approx([error])


def test_a_step_moves_the_chosen_action_alone():
    """With δ clipped to 1, the constant feature's weight of action 1 moves by the learning rate."""
    learner = Learner()
    learner.update(_sample(True, False))

    assert learner.weights[4].tolist() == pytest.approx([0.0, LEARNING_RATE])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("demo")) as server:
        yield server


def demo(served, *arguments):
    """Start the demo as a user does."""
    return subprocess.Popen(
        [str(BIN / "flashdeck"), "demo", "--url", served.url, *arguments], cwd=served.folder, text=True,
        env=environment(COLUMNS="150"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def assert_consistent(client):
    """What the buffer counted, what the vault holds and what the newest version has are the same steps."""
    for name in ("cartpole", "pong"):
        found = client.buffer(name).describe()
        vault = client.vault(f"{name}/run1")
        length = vault.describe()["length"]
        assert found["position"] == length > 0
        ends = vault.slice("latest", leaves=["terminated", "reward"])
        assert ends["reward"].shape == (found["rows"], vault.version("latest")["length"])


def test_the_demo_fills_buffers_and_vaults(served):
    """In a few seconds both buffers hold steps and have been sampled, and the vaults have tagged versions."""
    with demo(served, "--seconds", "6") as process:
        output, _ = process.communicate(timeout=90)
    with Client(served.url) as client:
        cartpole, pong = client.buffer("cartpole").describe(), client.buffer("pong").describe()
        versions = client.vault("cartpole/run1").versions()
        tags = client.vault("pong/run1").tags()
        priorities = client.buffer("cartpole").histogram("priority")
        assert_consistent(client)

    assert process.returncode == 0, output
    assert "The demo is over." in output
    assert cartpole["size"] > 2_000 and pong["size"] > 100
    assert cartpole["sampled"] > 0
    assert len(versions) >= 2
    assert tags == {"demo": max(tags.values())}
    assert len([count for count in priorities["counts"] if count]) > 1


def wait_until(holds, what):
    """Wait until something holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def played(client):
    """Return how many steps were added to each buffer."""
    there = {buffer["name"]: buffer["added"] for buffer in client.buffers()}
    return [there.get(name, 0) for name in ("cartpole", "pong")]


def press_ctrl_c(process):
    """Signal all processes of the demo, as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def children_of(pid):
    """Return the processes of a session beside its first."""
    sessions = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            sessions[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
    return {found for found, session in sessions.items() if session == pid and found != pid}


@pytest.mark.parametrize("later", [0.0, 0.7])
def test_ctrl_c_leaves_everything_consistent(served, later):
    """All processes end, nothing is half stored, and the demo can go on later."""
    with Client(served.url) as client:
        former = played(client)
        with demo(served, "--seconds", "60") as process:
            wait_until(lambda: all(map(int.__gt__, played(client), former)), "the demo plays nothing")
            time.sleep(later)
            press_ctrl_c(process)
            output, _ = process.communicate(timeout=40)
        before = client.buffer("cartpole").describe()["added"]
        time.sleep(0.5)
        after = client.buffer("cartpole").describe()["added"]
        assert_consistent(client)

    assert process.returncode == 0, output
    assert "The demo was stopped." in output and "Traceback" not in output
    assert after == before  # no actor plays on


def test_ctrl_c_while_the_actors_start_ends_them(served):
    """Whenever it comes, nothing is left running and no process of the demo shows a traceback."""
    with demo(served, "--seconds", "60") as process:
        wait_until(lambda: children_of(process.pid), "no actor starts")
        press_ctrl_c(process)
        output, _ = process.communicate(timeout=40)

    assert process.returncode == 0, output
    assert "The demo was stopped." in output and "Traceback" not in output
    wait_until(lambda: not children_of(process.pid), "an actor is left running")


def test_an_actor_whose_server_goes_ends_the_demo(tmp_path):
    """The error of an actor is told in one sentence, and nothing is left running."""
    with serve(tmp_path) as server, demo(server, "--seconds", "60") as process:
        time.sleep(4)
        server.process.kill()
        output, _ = process.communicate(timeout=60)

    assert process.returncode == 1, output
    assert "Error: " in output and "Traceback" not in output


def test_no_server_is_one_sentence(tmp_path):
    """The demo asks whether the server runs."""
    done = subprocess.run(
        [str(BIN / "flashdeck"), "demo", "--url", "http://127.0.0.1:9"], capture_output=True, text=True,
        env=environment(), cwd=tmp_path, timeout=60,
    )  # fmt: skip

    assert done.returncode == 1
    assert "Is it running?" in done.stderr
