"""What a learner works out from a sample, against calculations by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.buffers.replay import burn_in_mask, episode_mask, importance_weights, n_step
from fbxcore.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.0, [1, 1, 1, 1]), (0.5, [0.5**0.5, 1, 1, 0.5]), (1.0, [0.5, 1, 1, 0.25])],
)
def test_importance_weights_are_those_of_the_paper(beta, expected):
    """(1 / P) ** beta over the greatest, for P of 1/4, 1/8, 1/8 and 1/2."""
    weights = importance_weights(jnp.array([0.25, 0.125, 0.125, 0.5]), beta)

    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_weighted_draws_have_the_mean_of_all_items():
    """With beta 1 the weighted mean over prioritised draws is the plain mean over items, 4.5."""
    buffer = fbx.make_prioritised_item_buffer(
        max_length=10, min_length=1, sample_batch_size=10, add_batches=True, priority_exponent=1.0
    )
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.arange(10.0))
    state = buffer.set_priorities(state, jnp.arange(10), jnp.arange(1.0, 11.0))
    drawn = jax.vmap(buffer.sample, in_axes=(None, 0))(state, jax.random.split(jax.random.key(0), 2000))
    values, shares = drawn.experience.ravel(), drawn.probabilities.ravel()
    weights = importance_weights(shares, 1.0)

    assert abs(float(jnp.mean(values)) - 6.0) < 0.05
    assert abs(float(jnp.sum(weights * values) / jnp.sum(weights)) - 4.5) < 0.05


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [([0.5, 0.0, 0.25], [0.5, 0.0, 1.0]), ([0.0, 0.0], [0.0, 0.0]), ([1e-30, 1.0], [1.0, 1e-30])],
)
def test_importance_weights_and_slopes_are_always_finite(probabilities, expected):
    """Padding of probability 0 has weight 0, and no weight or derivative is NaN or infinite."""
    probabilities = jnp.array(probabilities)
    slopes = jax.grad(lambda p, beta: jnp.sum(importance_weights(p, beta)), argnums=(0, 1))

    np.testing.assert_allclose(importance_weights(probabilities, 1.0), expected, rtol=1e-5)
    assert all(np.isfinite(slope).all() for slope in slopes(probabilities, 0.5))


def test_importance_weights_are_traced_once_for_all_betas():
    """A rising beta is an argument like others, also for a batch of batches."""
    traced = []

    @jax.jit
    def weigh(probabilities, beta):
        traced.append(1)
        return jax.vmap(importance_weights, in_axes=(0, None))(probabilities, beta)

    for beta in (0.4, 0.7, 1.0):
        weights = weigh(jnp.array([[0.5, 0.25], [0.1, 0.9]]), beta)

    assert len(traced) == 1
    np.testing.assert_allclose(weights, [[0.5, 1], [1, 1 / 9]], rtol=1e-6)


def test_an_episode_mask_ends_before_a_start_and_behind_an_end():
    """The start of the first timestep and the end of the last one break nothing."""
    starts = jnp.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]], bool)
    ends = jnp.array([[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], bool)

    assert episode_mask(starts=starts).astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert episode_mask(ends=ends).astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert episode_mask(starts=starts, ends=ends).sum(1).tolist() == [2, 4, 1]
    with pytest.raises(InvalidArgumentError, match="`starts` or `ends` must be given"):
        episode_mask()


def test_burn_in_and_what_is_learnt_from_make_up_the_mask():
    """Two timesteps of burn-in leave 3 of 5, 1 of 3, and none of 2."""
    mask = jnp.arange(5) < jnp.array([[5], [3], [2]])
    prefix = burn_in_mask(mask, 2)
    learnt = mask & ~prefix

    assert prefix.sum(1).tolist() == [2, 2, 2] and learnt.sum(1).tolist() == [3, 1, 0]
    assert (learnt | prefix == mask).all() and not prefix[:, 2:].any()


# One sequence of rewards 1 2 4 8 with gamma 1/2; what ends the episode and where; n; then by hand the
# return, its discount, the number of rewards in it, and the observation to bootstrap from.
BY_HAND = {
    "no end": ({}, 3, 1 + 2 / 2 + 4 / 4, 1 / 8, 3, 3),
    "one step": ({}, 1, 1, 1 / 2, 1, 1),
    "terminated": ({"terminated": 1}, 3, 1 + 2 / 2, 0, 2, None),
    "terminated at once": ({"terminated": 0}, 3, 1, 0, 1, None),
    "terminated at the nth": ({"terminated": 2}, 3, 1 + 2 / 2 + 4 / 4, 0, 3, None),
    "terminated later": ({"terminated": 3}, 3, 1 + 2 / 2 + 4 / 4, 1 / 8, 3, 3),
    "truncated": ({"truncated": 2}, 3, 1 + 2 / 2, 1 / 4, 2, 2),
    "truncated at once": ({"truncated": 0}, 3, 0, 1, 0, None),
    "truncated, next given": ({"truncated": 1, "next": True}, 3, 1 + 2 / 2, 1 / 4, 2, 102),
    "truncated at once, next given": ({"truncated": 0, "next": True}, 3, 1, 1 / 2, 1, 101),
    "all steps, next given": ({"next": True}, 4, 1 + 2 / 2 + 4 / 4 + 8 / 8, 1 / 16, 4, 104),
    "terminated, next given": ({"terminated": 2, "next": True}, 4, 1 + 2 / 2 + 4 / 4, 0, 3, None),
    "the newest timestep is the third": ({"held": 3}, 3, 1 + 2 / 2, 1 / 4, 2, 2),
    "the newest timestep is the first": ({"held": 1}, 3, 0, 1, 0, None),
    "the newest timestep terminated": ({"held": 2, "terminated": 1}, 3, 1 + 2 / 2, 0, 2, None),
    "the next episode terminates": ({"held": 2, "terminated": 3}, 3, 1, 1 / 2, 1, 1),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_n_step_transitions_are_those_calculated_by_hand(name):
    """Return, discount, steps and state to bootstrap from, at each kind of end."""
    how, n, returns, discount, num_steps, second = BY_HAND[name]
    step = jnp.arange(4)[None]
    sequences = {"obs": step, "action": step + 10}
    options = {}
    if "truncated" in how:
        options["truncated"] = step == how["truncated"]
    if "held" in how:
        options["mask"] = step < how["held"]
    if "next" in how:
        options["next_observations"] = {"obs": step + 101}
    # What is of another episode may be anything, also infinite.
    rewards = jnp.where(step < how.get("held", 4), 2.0**step, jnp.inf)
    discounts = jnp.where(step == how.get("terminated", -1), 0.0, 0.5)
    found = n_step(sequences, rewards, discounts, n, **options)

    assert found.returns.tolist() == [returns] and found.discounts.tolist() == [discount]
    assert found.num_steps.tolist() == [num_steps] and found.mask.tolist() == [num_steps > 0]
    assert found.first["obs"].tolist() == [0] and found.first["action"].tolist() == [10]
    assert second is None or found.second["obs"].tolist() == [second]


def test_without_ends_it_is_the_bootstrapped_return():
    """Equation 7.1 of Sutton and Barto, for random rewards and discounts and every n."""
    rng = np.random.default_rng(0)
    rewards, discounts, values = rng.random((3, 6, 9)).astype(np.float32)
    for n in range(1, 9):
        found = n_step(values, rewards, discounts, n)
        target = found.returns + found.discounts * found.second
        expected = values[:, n]
        for k in reversed(range(n)):
            expected = rewards[:, k] + discounts[:, k] * expected

        np.testing.assert_allclose(target, expected, rtol=1e-5)


def stepwise(rewards, discounts, truncated, held, n, has_next):
    """Return return, discount and steps of one sequence, step by step."""
    total, discount, num_steps = 0.0, 1.0, 0
    for k in range(min(n, held)):
        is_terminal = discounts[k] == 0
        if not is_terminal and not has_next and (truncated[k] or k + 1 == held):
            break  # the state behind this step is nowhere
        total += discount * rewards[k]
        discount *= discounts[k]
        num_steps += 1
        if is_terminal or truncated[k]:
            break
    return total, discount, num_steps


@pytest.mark.parametrize("has_next", [False, True])
def test_n_step_transitions_are_those_of_a_loop_over_steps(has_next):
    """2,000 random sequences with ends and masks anywhere, also both at once, for n from 1 to 5."""
    rng = np.random.default_rng(1)
    shape = (2000, 6)
    obs = np.arange(12_000).reshape(shape)
    rewards = rng.integers(-8, 9, shape).astype(np.float32)
    discounts = np.where(rng.random(shape) < 0.15, 0.0, 0.5).astype(np.float32)
    truncated = rng.random(shape) < 0.15
    held = rng.integers(1, 7, shape[0])
    mask = np.arange(6) < held[:, None]
    options = {"next_observations": obs + 100_000} if has_next else {}
    for n in range(1, 6):
        found = n_step(obs, rewards, discounts, n, truncated=truncated, mask=mask, **options)
        rows = zip(rewards, discounts, truncated, held, strict=True)
        expected = np.array([stepwise(*row, n, has_next) for row in rows])
        second = obs[:, 0] + expected[:, 2] + (100_000 - 1 if has_next else 0)
        needed = (expected[:, 1] > 0) & (expected[:, 2] > 0)

        np.testing.assert_array_equal(found.returns, expected[:, 0])  # exact: halves of small integers
        np.testing.assert_array_equal(found.discounts, expected[:, 1])
        np.testing.assert_array_equal(found.num_steps, expected[:, 2])
        np.testing.assert_array_equal(np.asarray(found.second)[needed], second[needed])


@pytest.mark.parametrize("n", [0, 4, 5])
def test_more_steps_than_a_sequence_holds_are_refused(n):
    """Sequences of four hold three steps, or four with next observations."""
    x = jnp.ones((2, 4))

    with pytest.raises(InvalidArgumentError, match="`n` must be from 1 to 3 for sequences of 4"):
        n_step(x, x, x, n)
    if n == 4:
        assert n_step(x, x, x, n, next_observations=x).num_steps.tolist() == [4, 4]


def test_arrays_of_another_shape_are_refused():
    """Nothing is broadcast: discounts are `[N, L]` as rewards are."""
    x = jnp.ones((2, 4))

    with pytest.raises(InvalidArgumentError, match=r"`discounts` must have the shape \[2, 4\] of `rewards`"):
        n_step(x, x, jnp.ones(4), 2)
    with pytest.raises(InvalidArgumentError, match=r"`mask` must have the shape \[2, 4\] of `rewards`"):
        n_step(x, x, x, 2, mask=jnp.ones((1, 4), bool))


def test_n_step_returns_over_a_buffer_of_episodes_are_the_true_ones():
    """Rewards 1 of CartPole-like episodes: V = steps left, learnt from any start, whatever the episode's end.

    Episodes of 5 that terminate are worth 5, 4, 3, 2, 1; with the true values to bootstrap from, every
    three-step target is the value of its start. Truncated ones go on for ever, worth 1 / (1 - gamma).
    """
    gamma = 0.75
    flat = fbx.make_trajectory_buffer(
        add_batch_size=2,
        sample_batch_size=200,
        sample_sequence_length=4,
        period=1,
        min_length_time_axis=4,
        max_length_time_axis=17,
    )
    buffer = fbx.make_episode_buffer(flat, episode_end=("terminated", "truncated"), crossing="mask")
    step = np.stack([np.arange(20) % 5, np.arange(20) % 5])
    ends = step == 4
    left = (1 - gamma ** (5 - step[0])) / (1 - gamma)
    stream = {
        "value": np.stack([left, np.full(20, 1 / (1 - gamma))]).astype(np.float32),
        "terminated": ends & [[True], [False]],
        "truncated": ends & [[False], [True]],
    }
    state = buffer.init(jax.tree.map(lambda x: x[0, 0], stream))
    for k in range(0, 20, 10):
        state = buffer.add(state, jax.tree.map(lambda x, k=k: x[:, k : k + 10], stream))
    drawn = buffer.sample(state, jax.random.key(0))
    seen = drawn.experience
    found = n_step(
        seen,
        jnp.ones((200, 4)),
        gamma * (1 - seen["terminated"]),
        3,
        truncated=seen["truncated"],
        mask=drawn.mask,
    )
    target = found.returns + found.discounts * found.second["value"]
    is_cut = np.asarray(seen["truncated"][:, 0])

    np.testing.assert_allclose(target[found.mask], found.first["value"][found.mask], rtol=1e-5)
    np.testing.assert_array_equal(found.mask, ~is_cut)  # what follows was not stored
    assert 0 < is_cut.sum() < 40 and set(found.num_steps.tolist()) == {0, 1, 2, 3}


def test_n_step_works_under_vmap_and_grad():
    """A loss of n-step targets over a batch of batches has finite slopes, also where an episode ended."""
    obs = jnp.arange(24.0).reshape(2, 3, 4)
    discounts = jnp.where(obs % 4 == 1, 0.0, 0.9)

    def loss(weight):
        found = jax.vmap(lambda x, d: n_step(x, x * weight, d, 2))(obs, discounts)
        return jnp.sum(found.returns + found.discounts * weight * found.second)

    # Each return is w x_0 + 0.9 w x_1, and the discount 0: the slope is the sum of x_0 + 0.9 x_1.
    expected = float(jnp.sum(obs[..., 0] + 0.9 * obs[..., 1]))
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(2.0), expected, rtol=1e-6)
