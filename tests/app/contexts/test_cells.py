"""Arrays as cells."""

import base64

import cv2
import numpy as np
import pytest

from app.contexts.cells import cell, picture


def test_a_vector_is_cut_after_four():
    """The cell says how many entries it leaves out; its title has them."""
    shown = cell(np.arange(7, dtype="int32"))

    assert shown.text == "[0, 1, 2, 3 … +3]"
    assert shown.title == "0, 1, 2, 3, 4, 5, 6"


@pytest.mark.parametrize("shape", [(16, 20), (16, 20, 3), (3, 16, 20), (4, 16, 20), (16, 20, 1), (1, 16, 20)])
def test_an_image_leaf_is_a_picture_with_the_same_pixels(shape):
    """The PNG of a cell, decoded by another library, has the newest frame's pixels."""
    array = np.random.default_rng(0).integers(0, 256, shape).astype("uint8")
    body = base64.b64decode(cell(array).image.partition(",")[2])
    decoded = cv2.imdecode(np.frombuffer(body, "uint8"), cv2.IMREAD_UNCHANGED)

    expected = {(16, 20): array}.get(shape)
    if expected is None:
        expected = {
            (16, 20, 3): array, (3, 16, 20): np.moveaxis(array, 0, -1) if shape == (3, 16, 20) else array,
            (4, 16, 20): array[-1], (16, 20, 1): array[..., 0], (1, 16, 20): array[0],
        }[shape]  # fmt: skip
    assert np.array_equal(decoded[..., ::-1] if decoded.ndim == 3 else decoded, expected)


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4), "uint8"), np.zeros((16, 20), "float32"), np.zeros(64, "uint8")]
)
def test_what_is_no_image_is_no_picture(array):
    """Small, float or flat arrays are shown as numbers."""
    assert picture(array) is None
    assert cell(array).image == ""


def test_a_large_image_is_thinned_out():
    """A frame of 210 × 160 becomes at most 96 pixels wide and high."""
    assert max(picture(np.zeros((210, 160, 3), "uint8")).shape[:2]) <= 96
