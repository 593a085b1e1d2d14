"""Averages of primal points: the server half."""
