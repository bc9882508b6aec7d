"""Write docs/troubleshooting.md from the codes of errors and notes.

    python docs/make_troubleshooting.py

Each code is a heading, so that `troubleshooting.html#needs-example-batch` is an address.
"""

import re
from pathlib import Path

from orderone.core.codes import SECTIONS

PAGE = Path(__file__).parent / "troubleshooting.md"
INTRODUCTION = """\
# Troubleshooting

For those who have met an error or a note of orderone. After this page you know what it means and \
what to do.

Most messages end with a code in square brackets, such as `[unknown-name]`. Look for the code \
here, or type it into the search box.
Sentences may be reworded from version to version; codes stay. Messages that say everything by \
themselves have no code.

In Python, errors about input are `orderone.InputError`, a `ValueError`: `error.code` \
is the code, `error.argument` the
name of the argument that was wrong.

Other places to look: [causes of a failed check](read-a-check.md#causes),
[interrupted sweeps](resume.md#when-something-goes-wrong), [questions and answers](faq.md).
"""


def page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    for title, codes in SECTIONS.items():
        if not codes:
            continue
        parts.append(f"## {title}\n")
        for code in sorted(codes):
            parts.append(f"### {code}\n\n{as_markdown(codes[code])}\n")
    return "\n".join(parts)


def as_markdown(text: str) -> str:
    """Escape the characters that Markdown would read as markup; code in backticks stays."""
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"([*_<>$\[\]|\\])", r"\\\1", pieces[i])
    return "`".join(pieces)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
