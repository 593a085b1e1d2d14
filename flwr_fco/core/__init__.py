"""Layouts, specs, files, validation: the foundations of all other modules."""
