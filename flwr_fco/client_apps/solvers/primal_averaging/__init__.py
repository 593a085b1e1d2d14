"""Averaging of primal points: the client half."""
