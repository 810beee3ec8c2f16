"""What arrives on the device is what was given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.staging import ALIGNMENT, pack, stage, unpack

ARRAYS = arrays.arrays(
    st.sampled_from([np.int32, np.int64, np.float32, np.uint8]), arrays.array_shapes(min_dims=1, max_dims=3, min_side=0)
)


@given(st.lists(ARRAYS, max_size=6))
def test_one_buffer_holds_all_arrays(given_arrays: list[np.ndarray]) -> None:
    """Values, types and shapes come out of the buffer as they went in, each array at an aligned place."""
    buffer, places = pack(given_arrays, pinned=False)
    for array, place, tensor in zip(given_arrays, places, unpack(buffer, places), strict=True):
        assert place.first % ALIGNMENT == 0
        assert tensor.shape == array.shape
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_view_that_is_not_contiguous_is_packed_in_order() -> None:
    """Columns of a matrix come out as columns."""
    columns = np.arange(12, dtype=np.int32).reshape(3, 4).T
    (tensor,) = unpack(*pack([columns], pinned=False))
    np.testing.assert_array_equal(tensor.numpy(), columns)


def test_on_a_cpu_nothing_is_copied() -> None:
    """The tensor and the array are one memory."""
    array = np.arange(5)
    (tensor,) = stage([array], torch.device("cpu"))
    array[2] = 77
    assert tensor.tolist() == [0, 1, 77, 3, 4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_through_pinned_memory_all_arrives() -> None:
    """On a GPU the arrays are equal to those of the host."""
    given_arrays: list[np.ndarray] = [np.arange(1000), np.arange(7, dtype=np.int32), np.empty((2, 0))]
    for array, tensor in zip(given_arrays, stage(given_arrays, torch.device("cuda")), strict=True):
        np.testing.assert_array_equal(tensor.cpu().numpy(), array)
