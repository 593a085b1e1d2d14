"""Dual averaging: the client half."""
