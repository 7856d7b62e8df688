"""Prepared images as arrays of numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from application.ports.vision import PreparedArray, PreparedImage


def opened(image: PreparedImage) -> dict[str, NDArray[Any]]:
    return {name: np.frombuffer(one.data, one.dtype).reshape(one.shape) for name, one in image.arrays.items()}


def prepared(arrays: dict[str, NDArray[Any]], num_features: int) -> PreparedImage:
    kept = {name: PreparedArray(str(one.dtype), one.shape, one.tobytes()) for name, one in arrays.items()}
    return PreparedImage(kept, num_features)
