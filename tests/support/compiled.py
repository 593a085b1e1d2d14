"""Loads what Numba does for the first function that it compiles or reads from its cache; see `fresh.py`.

As the last that is loaded it spares the collector of garbage all before, which every file that ends would copy.
"""

import gc

import numba

numba.njit(lambda x: x)(1.0)
gc.freeze()
