"""Flower's processes on this machine: a SuperLink for simulations, and deployments for operators and tests."""
