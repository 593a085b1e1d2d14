"""Saddle points: the client half."""
