"""Write the tables of docs/read-a-check.md from those of the judge.

    python docs/make_read_a_check.py

Each table stands between `<!-- name -->` and `<!-- end -->`; the rest of the page stays.
"""

import re
from pathlib import Path

from orderone.core.codes import SECTIONS
from orderone.measure.judge.causes import TABLE as CAUSES
from orderone.measure.judge.quantities import TABLE as QUANTITIES
from orderone.measure.judge.thresholds import THRESHOLDS

PAGE = Path(__file__).parent / "read-a-check.md"


def quantities() -> str:
    """Return the table of judged quantities."""
    rows = ["| quantity | of a | when | what is measured | prediction | kind |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for row in QUANTITIES:
        cells = (row.subject, str(row.when), row.measured, row.prediction, row.kind)
        rows.append(f"| `{row.quantity}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def thresholds() -> str:
    """Return the table of thresholds."""
    rows = ["| number | meaning | reason |", "| --- | --- | --- |"]
    for threshold in THRESHOLDS.values():
        rows.append(f"| {threshold.value:g} | {threshold.meaning} | {threshold.reason} |")
    return "\n".join(rows)


def causes() -> str:
    """Return the table of causes, each code once, in the order of the judge."""
    texts = {code: text for codes in SECTIONS.values() for code, text in codes.items()}
    rows = ["| code | explains | meaning, and what to do |", "| --- | --- | --- |"]
    for code in dict.fromkeys(cause.code for cause in CAUSES):
        scope = next(cause.scope for cause in CAUSES if cause.code == code)
        rows.append(f"| `{code}` | {scope} | {texts[code]} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """Return the page with new tables."""
    for name, table in (("quantities", quantities), ("thresholds", thresholds), ("causes", causes)):
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        content = f"<!-- {name} -->\n\n{table()}\n\n<!-- end -->"
        text = re.sub(pattern, lambda _, content=content: content, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
