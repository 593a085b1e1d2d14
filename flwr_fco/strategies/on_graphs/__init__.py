"""Methods on graphs: the server half."""
