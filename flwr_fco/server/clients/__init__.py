"""Who takes part: nodes, graphs, memories."""
