"""Averages of primal points: the client half."""
