"""Sparse logistic regression on scikit-learn's breast cancer data, federated."""
