"""Errors and warnings. Every message says what was wrong, where, and what to do."""


class InvalidInputError(ValueError):
    """Data, labels or parameters that make no sense; raised before any work is done."""


class UnsupportedError(ValueError):
    """A combination of parts that has no algorithm; the message names one that has."""


class FileFormatError(ValueError):
    """A model file that is damaged, foreign, or written by a newer version."""


class DegenerateDataWarning(UserWarning):
    """The data cannot support the requested model; a simpler one was fitted."""
