"""What comes back in a round, and which of it counts."""
