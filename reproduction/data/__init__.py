"""Data sets of the papers' figures, which nobody else would train on."""
