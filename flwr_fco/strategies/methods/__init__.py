"""The strategies, a few lines each: which method, and which options it adds."""
