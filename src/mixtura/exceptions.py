"""Errors and warnings. Every message says what was wrong, where, and what to do."""

import sys
import warnings
from pathlib import Path

_OWN_FOLDERS = (str(Path(__file__).parent), str(Path("sklearn") / "base.py"))


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called us."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and any(own in frame.f_code.co_filename for own in _OWN_FOLDERS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class InvalidInputError(ValueError):
    """Data, labels or parameters that make no sense; raised before any work is done."""


class UnsupportedError(ValueError):
    """A combination of parts that has no algorithm; the message names one that has."""


class NoDensityError(UnsupportedError, AttributeError):
    """A model without a density was asked for one."""


class NoLabelsError(UnsupportedError):
    """A model that was fitted without labels was asked for classes."""


class FileFormatError(ValueError):
    """A model or data file that is damaged, foreign, or written by a newer version."""


class DegenerateDataWarning(UserWarning):
    """The data cannot support the requested model; a simpler one was fitted."""


class AmbiguousDataWarning(UserWarning):
    """The data may be read in two ways; the message says which was taken, and how to decide."""
