"""Averaging of primal points: the server half."""
