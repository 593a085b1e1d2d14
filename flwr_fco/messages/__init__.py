"""What crosses between server and clients: plain data (`protocol`), and Flower's records and messages of it."""
