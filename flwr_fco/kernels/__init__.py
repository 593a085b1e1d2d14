"""Numba kernels: free functions on plain arrays, compiled once and cached on disk."""
