"""Types that the whole package shares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Num = float | FloatArray
"""A number, or an array of numbers that broadcasts with the others; float64 for every count."""
