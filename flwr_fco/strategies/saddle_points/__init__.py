"""Saddle points: the server half."""
