"""Markup that cannot be forged: whatever is not `Html` by its type is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mixtura.plotting.base import printable


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None are left out; an underscore at the end of a name is
    dropped, and one inside is a hyphen.
    """
    pairs = {key.rstrip("_").replace("_", "-"): v for key, v in attributes.items() if v is not None}
    opening = "".join(f' {key}="{_escaped(value)}"' for key, value in pairs.items())
    return Html(f"<{name}{opening}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """One after the other, escaped where they are no markup."""
    return Html("".join(each if isinstance(each, Html) else _escaped(each) for each in children))


def _escaped(value: object) -> str:
    return escape(printable(str(value)))


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], caption: str | None = None
) -> Html:
    """A table; the first cell of each row is its heading."""
    lines = [
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    title = [tag("caption", caption)] if caption else []
    names = [tag("th", cell, scope="col") if cell else tag("td") for cell in head]
    top = [tag("thead", tag("tr", *names))] if names else []
    return tag("table", *title, *top, tag("tbody", *lines))


def listed(names: Sequence[object], most: int) -> str:
    """The first of some names, and how many more there are."""
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
