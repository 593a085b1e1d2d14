"""Local minimisations: the client half."""
