"""Questions that a server asks clients outside training and evaluation."""
