"""Pernkopf and Wohlmayr (2010), "Large margin learning of Bayesian classifiers based on Gaussian
mixture models"."""
