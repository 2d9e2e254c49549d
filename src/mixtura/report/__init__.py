"""A fitted estimator as HTML: in notebooks, and as a report on a classifier in one file."""

from mixtura.report.summary import notebook
from mixtura.report.write import write_report

__all__ = ["notebook", "write_report"]
