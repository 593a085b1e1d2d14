"""Layouts, specs, randomness, validation: what every other part builds on."""
