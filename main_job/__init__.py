"""The root Flower App: ``flwr run .`` trains a sparse model on real data, ``make run`` compares two strategies."""
