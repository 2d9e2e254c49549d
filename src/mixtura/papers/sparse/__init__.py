"""Hayashi and Uchida (2021), "A discriminative Gaussian mixture model with sparsity"."""
