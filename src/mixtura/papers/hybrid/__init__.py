"""Roth, Peharz, Tschiatschek and Pernkopf (2018), "Hybrid generative-discriminative training of
Gaussian mixture models"."""
