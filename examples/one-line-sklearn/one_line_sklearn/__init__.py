"""Flower's scikit-learn quickstart on the bundled digits, with an exactly sparse model by one other line."""
