"""Local solvers: the client half of every algorithm."""
