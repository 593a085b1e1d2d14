"""Gradient tracking: the server half."""
