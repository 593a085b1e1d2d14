"""What a server asks clients besides training and evaluation."""
