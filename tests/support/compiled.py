"""Loads what Numba does for the first function that it compiles or reads from its cache; see `fresh.py`."""

import numba

numba.njit(lambda x: x)(1.0)
