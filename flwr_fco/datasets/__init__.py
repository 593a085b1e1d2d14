"""Seeded data sets and the ways to split them over clients."""
