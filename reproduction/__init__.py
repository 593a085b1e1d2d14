"""Problems, runs, sweeps, the papers' experiments with rules that decide their claims, and the command line."""
