"""Choices on held-out rows, and what they say of probabilities."""
