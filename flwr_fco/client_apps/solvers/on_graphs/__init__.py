"""Decentralised methods on graphs: the client half."""
