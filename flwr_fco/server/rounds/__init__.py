"""The rounds of a run: the loop, callbacks, divergence, output, averages, saving."""
