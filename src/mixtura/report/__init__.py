"""A fitted estimator as HTML."""

from mixtura.report.summary import notebook

__all__ = ["notebook"]
