"""References for the special functions: Python's `math` and SciPy."""

from __future__ import annotations

import math

import numpy as np
import scipy.special

ORACLES = {
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "erfinv": scipy.special.erfinv,
    "lgamma": np.vectorize(math.lgamma, otypes=[float]),
    "digamma": scipy.special.digamma,
    "polygamma": scipy.special.polygamma,
}
