"""Layouts, specs, randomness, validation: what every other part stands on."""
