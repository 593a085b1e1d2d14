"""Dual averaging: the server half."""
