"""Named problems and their tasks."""
