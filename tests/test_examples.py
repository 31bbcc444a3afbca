"""The programs in `docs/examples` run, and their agents learn what the programs say."""

import importlib
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.served import environment, serve

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "examples"
SMALL = ("dqn.train(0, 1, 2)", "prioritised_dqn.train(0, 0.6, 1, 2)", "recurrent.train(0, True, 1, 2)")


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """Import from the folder of the examples, as a program that is run there does."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield
    for name in {path.stem for path in FOLDER.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.py")])
def test_a_program_is_short_enough_to_read(name):
    """No example has more than two hundred lines."""
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 200


def test_the_programs_run(tmp_path):
    """A few steps of each go through and are reported; compiled in haste, as that takes most of the time."""
    with serve(tmp_path) as served:
        calls = [*SMALL, f"dqn_over_http.train({served.url!r}, 0, 1, 2)"]
        code = "import dqn, dqn_over_http, prioritised_dqn, recurrent\n" + "\n".join(calls)
        settings = {"PYTHONPATH": f"{FOLDER}:{ROOT}", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], env=environment(**settings), capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 learning steps") == len(calls)


def test_an_actor_without_jax_plays_by_the_learners_weights(tmp_path):
    """What it reads from the file gives the same actions as the network that was written."""
    actor, learner, networks = (
        importlib.import_module(name) for name in ("cartpole_actor", "dqn_over_http", "networks")
    )
    weights = networks.init_mlp(jax.random.key(0), [4, 64, 64, 2])
    obs = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    assert actor.read_weights(tmp_path / "weights.npz") is None
    learner.write_weights(tmp_path / "weights.npz", weights)
    read = actor.read_weights(tmp_path / "weights.npz")

    expected = np.argmax(networks.mlp(weights, obs), axis=-1)
    assert 0 < expected.mean() < 1
    assert np.array_equal(actor.best_action(read, obs), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.npz"]


def test_cartpole_is_that_of_gymnasium():
    """From the same start, the same pushes end in the same states, rewards and terminations."""
    cartpole = importlib.import_module("cartpole")
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    state = cartpole.State(jnp.asarray(env.state, jnp.float32), jnp.int32(0))
    rng = np.random.default_rng(0)
    for _ in range(200):
        action = int(rng.integers(2))
        obs, reward, terminated, _, _ = env.step(action)
        state, outcome = jax.jit(cartpole.step)(state, action)
        np.testing.assert_allclose(state.obs, obs, rtol=1e-4, atol=1e-5)
        assert (outcome.reward, outcome.terminated) == (reward, terminated)
        if terminated:
            break

    assert terminated


def test_cartpole_is_truncated_after_500_steps_and_starts_again():
    """The 500th step of a pole that stands is truncated, not terminated, and the next is of a new episode."""
    cartpole = importlib.import_module("cartpole")
    state = cartpole.State(jnp.zeros(4), jnp.int32(498))
    state, early = cartpole.step(state, 0)
    state, late = cartpole.step(state, 1)
    fresh = cartpole.restart(state, late, jax.random.key(0))

    assert not early.truncated and late.truncated and not late.terminated
    assert fresh.steps == 0 and np.abs(fresh.obs).max() <= 0.05


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_dqn_balances_the_pole(seed):
    """Its mean return is over 300 of 500; one that pushes at random gets 22."""
    returns = importlib.import_module("dqn").train(seed)

    assert np.mean(returns[-5:]) > 300


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_prioritised_dqn_learns_a_rare_reward_sooner(seed):
    """It walks to the end and knows the worth of each step, in less time than one that replays at random."""
    program = importlib.import_module("prioritised_dqn")
    by_priority, at_random = (np.array(program.train(seed, exponent)) for exponent in (0.6, 0.0))
    rounds = [np.argmax(np.append(judged[:, 1] < 0.2, True)) for judged in (by_priority, at_random)]

    assert by_priority[-1, 0] == program.LENGTH and by_priority[-1, 1] < 0.05
    assert rounds[0] < rounds[1]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_only_an_agent_with_memory_finds_its_way(seed):
    """It turns the right way in nine of ten mazes; without memory it is right in half of them."""
    program = importlib.import_module("recurrent")
    with_memory, without = (program.train(seed, has_memory) for has_memory in (True, False))

    assert with_memory[-1] > 0.9
    assert abs(without[-1]) < 0.1


@pytest.mark.long
def test_a_dqn_learns_over_http(tmp_path):
    """Its mean return is over 150; one that pushes at random gets 22. No run is quite like another."""
    with serve(tmp_path) as served:
        returns = importlib.import_module("dqn_over_http").train(served.url, 0)

    assert np.mean(returns[-3:]) > 150
