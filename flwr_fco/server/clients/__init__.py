"""The clients of a run: nodes, graphs, memories."""
