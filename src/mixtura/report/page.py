"""The page around a report: one file without scripts, for screens of all sizes and for paper."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixtura.report.html import Html, joined, table, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--muted:#555;--line:#ccc;--wash:#f1f5f8}
@media (prefers-color-scheme:dark){
:root{--ink:#ededed;--paper:#151515;--muted:#b5b5b5;--line:#4a4a4a;--wash:#22272b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:58rem;margin:0 auto;padding:1rem}
h1,h2,h3{line-height:1.2;margin:1.6em 0 .5em;overflow-wrap:anywhere}h1{margin-top:.5em}
a{color:inherit}p,li{max-width:44rem}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none}
.lead{background:var(--wash);padding:.8rem 1rem;border-left:4px solid #0072b2}
.scroll{overflow-x:auto;margin:1em 0}
table{border-collapse:collapse;font-size:.9rem;min-width:18rem}
caption{text-align:left;color:var(--muted);padding-bottom:.3em}
th,td{padding:.3em .8em .3em 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--line)}
tbody th{font-weight:normal}table .cell{padding:.3em .6em;text-align:right}
figure{margin:1.2em 0;overflow-x:auto}
figure svg{max-width:100%;height:auto;color:var(--ink);fill:currentColor}
figcaption,.note{color:var(--muted);font-size:.9rem}
.bar{display:inline-block;height:.7em;background:#0072b2}
.track{display:inline-block;width:6rem}
@media print{
:root{--ink:#000;--paper:#fff;--muted:#333;--line:#999;--wash:#fff}nav{display:none}
main{max-width:none}figure,tr,li{break-inside:avoid}h2,h3{break-after:avoid}
.scroll{overflow:visible}}
"""
#: Pixels per inch below which a figure scrolls instead of shrinking.
_LEAST = 72.0
#: Nothing is loaded from anywhere, and nothing runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_TAG, _COMMENT, _HEAD = (
    re.compile(each, re.DOTALL) for each in (r"<[^>]+>", r"<!--.*?-->", r".*?(?=<svg)")
)


@dataclass(frozen=True)
class Section:
    """A part of a report, under its heading."""

    name: str
    title: str
    parts: Sequence[Html]


def page(title: str, lead: Html, sections: Sequence[Section]) -> str:
    """The whole file."""
    links = [tag("li", tag("a", each.title, href=f"#{each.name}")) for each in sections]
    head = joined(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            tag("title", title),
            tag("style", Html(_STYLE)),
        ]
    )
    body = [tag("section", tag("h2", each.title), *each.parts, id=each.name) for each in sections]
    contents = tag("nav", tag("ul", *links), aria_label="Contents")
    main = tag("main", tag("h1", title), lead, contents, *body)
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', main), lang='en')}\n"


def paragraph(*children: object) -> Html:
    return tag("p", *children)


def bullets(items: Sequence[object]) -> Html:
    return tag("ul", *(tag("li", each) for each in items))


def scrolling(found: Html, about: str) -> Html:
    """A wide table: it scrolls by itself, also by the keyboard."""
    return tag("div", found, class_="scroll", tabindex="0", role="region", aria_label=about)


def titled(head: Sequence[object], rows: Iterable[Sequence[object]], about: str) -> Html:
    """A table under its title, which scrolls by itself."""
    return scrolling(table(head, rows, about), about)


def bar(share: float) -> Html:
    """A share as a bar."""
    width = f"width:{100 * min(max(share, 0.0), 1.0):.1f}%"
    return tag("span", tag("span", class_="bar", style=width), class_="track", aria_hidden="true")


def picture(
    draw: Callable[[Axes], object], size: tuple[float, float], alt: str, caption: str, number: int
) -> Html:
    """A figure, drawn by matplotlib into the page; black is what the text of the page is.

    `number` makes its names differ from those of other figures.
    """
    from matplotlib.figure import Figure

    figure, buffer = Figure(figsize=size, layout="constrained"), io.StringIO()
    draw(figure.subplots())
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = _TAG.sub(lambda found: _own(found[0], number), _COMMENT.sub("", buffer.getvalue()))
    drawn = _HEAD.sub("", drawn, count=1).strip()
    least = f"min-width:{_LEAST * size[0]:.0f}px"
    opening = tag("svg", role="img", aria_label=alt, style=least).removesuffix("></svg>")
    inner = Html(drawn.replace("<svg", opening, 1))
    return tag("figure", inner, tag("figcaption", caption), tabindex="0")


def _own(element: str, number: int) -> str:
    """A tag of a figure, with names of its own and without black."""
    for name in (' id="', 'href="#', "url(#"):
        element = element.replace(name, f"{name}f{number}-")
    return element.replace("#000000", "currentColor")
