"""Gradient tracking: the client half."""
