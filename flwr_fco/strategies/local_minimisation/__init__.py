"""Local minimisations: the server half."""
