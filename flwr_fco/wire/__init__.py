"""All that crosses between server and clients."""
