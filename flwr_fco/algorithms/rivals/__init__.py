"""Methods that the papers compare with, and that nobody would pick for data of their own."""
