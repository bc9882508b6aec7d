"""Extension of Markdown that converts formulas to MathML.

`pymdownx.arithmatex` marks the formulas between dollar signs. Browsers draw MathML without a script
or a network.
"""

import re
from html import unescape

from latex2mathml.converter import convert
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor

UPRIGHT = re.compile(r"\\mathrm\{(\w)\}")  # latex2mathml forgets that a single letter is upright
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.S)


class Formulas(Postprocessor):
    def run(self, text: str) -> str:
        return FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    inline = found[1] == "span"
    latex = UPRIGHT.sub(r"\\text{\1}", unescape(found[2]).strip())
    formula = convert(latex, display="inline" if inline else "block")
    return formula if inline else f'<div class="formula">{formula}</div>'


class FormulasExtension(Extension):
    def extendMarkdown(self, md) -> None:
        md.postprocessors.register(Formulas(md), "formulas", priority=0)  # after all others


def makeExtension(**options) -> Extension:
    return FormulasExtension(**options)
