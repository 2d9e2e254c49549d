"""A fitted estimator as HTML: in notebooks, and as a report in one file, or a card in Markdown."""

from mixtura.report.numbers import write_numbers_report
from mixtura.report.summary import notebook
from mixtura.report.write import write_report

__all__ = ["notebook", "write_numbers_report", "write_report"]
