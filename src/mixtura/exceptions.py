"""Errors and warnings. Every message says what was wrong, where, and what to do."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from types import FrameType

#: Whose lines are not the user's; and those of them that pass a single call on.
_LIBRARIES = {"mixtura", "sklearn", "joblib", "optuna"}
_PASS_ON = ("mixtura", "sklearn.base", "sklearn.pipeline", "sklearn.utils")
#: Names and numbers in a message.
_PARTICULARS = re.compile(r"\(.*?\)|\[.*?\]|'.*?'|[\d.]+")
#: What was said at which line of the user's code, forgotten when so much is remembered; and what
#: kind of thing was said within the present call.
_said_at: set[tuple[str, int, str]] = set()
_MOST_REMEMBERED = 1_000
_said_now: ContextVar[set[str] | None] = ContextVar("_said_now", default=None)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called us, once for each call.

    Where Python's filters show a message once for each line, it is so even if what we call resets
    them; and in a search or a cross-validation, whose many fits are on rows that differ, it is once
    whatever names and numbers the message holds.
    """
    frame, level, searching = sys._getframe(1), 2, False
    while frame.f_back is not None and _module(frame).partition(".")[0] in _LIBRARIES:
        searching |= not _module(frame).startswith(_PASS_ON)
        frame, level = frame.f_back, level + 1
    kind, now = _PARTICULARS.sub("", message), _said_now.get()
    place = (frame.f_code.co_filename, frame.f_lineno, kind if searching else message)
    once = _is_shown_once(message, category, frame)
    if (once and place in _said_at) or (now is not None and kind in now):
        return
    if once:
        _remember(place)
    if now is not None:
        now.add(kind)
    warnings.warn(message, category, stacklevel=level)


def _remember(place: tuple[str, int, str]) -> None:
    if len(_said_at) >= _MOST_REMEMBERED:
        _said_at.clear()
    _said_at.add(place)


@contextmanager
def warning_once() -> Iterator[None]:
    """A call whose parts may have the same to say: each warning is given once."""
    if _said_now.get() is not None:
        yield
        return
    token = _said_now.set(set())
    try:
        yield
    finally:
        _said_now.reset(token)


def _module(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "")


def _is_shown_once(message: str, category: type[Warning], frame: FrameType) -> bool:
    """Whether the first of Python's filters that fits has the action "default"."""
    filters = getattr(warnings, "_get_filters", lambda: warnings.filters)()  # Python 3.14 has both
    for action, text, kind, place, line in filters:
        if (
            issubclass(category, kind)
            and _fits(text, message)
            and _fits(place, _module(frame))
            and line in (0, frame.f_lineno)
        ):
            return action == "default"
    return True


def _fits(pattern: re.Pattern[str] | str | None, text: str) -> bool:
    if pattern is None or isinstance(pattern, str):
        return pattern in (None, text)
    return pattern.match(text) is not None


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


def check_share(name: str, value: object) -> None:
    """Refuse what is no number from 0 to 1."""
    if not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise InvalidInputError(f"{name} must lie between 0 and 1, got {value!r}.")
