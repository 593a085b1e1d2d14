"""Layouts, specs, randomness, validation: the foundations of all other modules."""
