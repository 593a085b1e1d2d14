"""The contract of an algorithm: both halves of a method, and what they see of a run."""
