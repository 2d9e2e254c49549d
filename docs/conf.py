"""The documentation site: `make docs` builds it into docs/_build/html, without network."""

from __future__ import annotations

import inspect
from importlib.metadata import version as installed
from typing import TYPE_CHECKING

from docutils.utils.math.latex2mathml import tex2mathml
from sphinx_gallery.sorting import FileNameSortKey

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

project = "mixtura"
author = copyright = "The mixtura developers"
release = version = installed("mixtura")

extensions = [
    *("myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"),
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": ".*",
    "capture_repr": ("_repr_html_",),  # displays are seen already
    "subsection_order": [
        *("gallery/holes", "gallery/labels", "gallery/answers", "gallery/numbers"),
        *("gallery/sequences", "gallery/training", "gallery/production"),
    ],
    "within_subsection_order": FileNameSortKey,
    "abort_on_example_error": True,
    "parallel": 2,
    "show_memory": False,
    "min_reported_time": 3600,
    "download_all_examples": False,
    "remove_config_comments": True,
}
#: Pages of results begin with sections of any level.
suppress_warnings = ["config.cache", "myst.header"]

html_theme = "pydata_sphinx_theme"
html_title = "mixtura"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 8,
}
html_sidebars = {"index": [], "start": [], "coming": [], "papers": []}


def _show(translator: HTML5Translator, node: nodes.Element, *, as_block: bool) -> None:
    from docutils.nodes import SkipNode

    translator.body.append(tex2mathml(node.astext(), as_block=as_block))
    raise SkipNode


def _inline(translator: HTML5Translator, node: nodes.Element) -> None:
    _show(translator, node, as_block=False)


def _block(translator: HTML5Translator, node: nodes.Element) -> None:
    _show(translator, node, as_block=True)


def _foreign(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out what classes inherit from other packages: its docstrings point to their sites."""
    function = member.fget if isinstance(member, property) else inspect.unwrap(member)
    home = getattr(function, "__module__", None) or "mixtura"
    return True if not home.startswith("mixtura") else None


def setup(app: Sphinx) -> None:
    """Formulas are MathML, which browsers show without scripts of other sites."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-skip-member", _foreign)
