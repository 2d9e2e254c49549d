"""Caetano (2018), "Hybrid generative-discriminative learning"."""
