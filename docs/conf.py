"""The site: Markdown pages, docstrings, and formulas as MathML, so that a page needs neither scripts nor a network."""

from docutils import nodes
from latex2mathml.converter import convert

from orderone import __version__

project, author, release = "orderone", "The orderone developers", __version__
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "orderone"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["formulas.css"]
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))


def _inline(self, node):
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self, node):
    self.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
