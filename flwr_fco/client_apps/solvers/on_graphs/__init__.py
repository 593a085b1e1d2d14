"""On graphs: the client half."""
