"""The mixer beside real Flashbax."""

import jax
import jax.numpy as jnp
import pytest

import fbxcore as fbx
from fbxcore.errors import InvalidArgumentError


def filled(library, kind: str, batch_size: int, value: float):
    """Return a buffer of ten equal items and its state."""
    buffer = getattr(library, f"make_{kind}_buffer")(
        max_length=10, min_length=2, sample_batch_size=batch_size, add_sequences=True
    )
    return buffer, buffer.add(buffer.init({"x": jnp.zeros(())}), {"x": value + jnp.arange(10.0)})


@pytest.mark.parametrize("kind", ["flat", "item", "prioritised_item"])
def test_it_joins_what_flashbax_does(flashbax, same, kind):
    """With proportions 1, 3 and 2 of 10, samples of three buffers are those of Flashbax."""
    samples = []
    for library in (fbx, flashbax):
        members = [filled(library, kind, 10, value) for value in (0.0, 100.0, 200.0)]
        buffers, states = ([member[k] for member in members] for k in (0, 1))
        mixer = library.make_mixer(buffers, sample_batch_size=10, proportions=[1, 3, 2])
        assert bool(mixer.can_sample(states))
        samples.append(jax.jit(mixer.sample)(states, jax.random.key(3)))

    assert same(samples[0].experience, samples[1].experience)


def test_an_empty_member_keeps_it_from_sampling():
    """One of two buffers without items makes `can_sample` false."""
    buffer, state = filled(fbx, "item", 4, 0.0)
    mixer = fbx.make_mixer([buffer, buffer], sample_batch_size=4, proportions=[1, 1])

    assert not bool(mixer.can_sample([state, buffer.init({"x": jnp.zeros(())})]))


def test_what_cannot_be_mixed_is_refused():
    """Other counts, types, sizes and negative parts are refused by name, as AssertionErrors too."""
    item, state = filled(fbx, "item", 4, 0.0)
    prioritised, _ = filled(fbx, "prioritised_item", 4, 0.0)
    for arguments, name in (
        (([item], 4, [1, 1]), "proportions"),
        (([item, prioritised][::-1], 4, [1, 1]), "buffers"),
        (([item], 0, [1]), "sample_batch_size"),
        (([item, item], 4, [1, -1]), "proportions"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"`{name}` must") as caught:
            fbx.make_mixer(*arguments)
        assert isinstance(caught.value, AssertionError)
    with pytest.raises(InvalidArgumentError, match="buffer 0 at most the 4 items it samples, got 6"):
        fbx.make_mixer([item], 6, [1]).sample([state], jax.random.key(0))
