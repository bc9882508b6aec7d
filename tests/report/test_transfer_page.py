"""The pages of a transfer study: their content, for every kind of study."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from support.bowls import BOWLS, sweep

from orderone.report import write_transfer, write_transfer_png
from orderone.sweeping.transfer import Transfer

STUDIES = {
    "two rules": lambda: pd.concat([sweep(), sweep(-1.0, rule="standard")]),
    "a rule called </script><b>": lambda: sweep(rule="</script><b>"),
    "one seed": lambda: sweep(seeds=1),
    "beyond the grid": lambda: sweep(best=-20.0),
    "all diverged": lambda: sweep(bowl=lambda d: np.full_like(d, np.inf)),
    "diverges above": lambda: sweep(bowl=BOWLS["diverges above"]),
    "depth": lambda: sweep(axis="depth", widths=(2, 4, 8)),
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_drawn(name, tmp_path):
    t = Transfer.from_frame(STUDIES[name]())
    page = write_transfer(t, tmp_path / "a.html").read_text()
    assert page.count("</script>") == 3  # the data and two scripts: no name ended one early
    figures = json.loads(re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0])
    assert len(figures) == 2
    picture = write_transfer_png(t, tmp_path / "a.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_has_curves_optima_tables_and_settings(tmp_path):
    t = Transfer.from_frame(STUDIES["two rules"]())
    page = write_transfer(t, tmp_path / "a.html", t.target(width=4096)).read_text()
    losses, drift = json.loads(re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0])
    assert len(losses["data"]) == 2 * 4 * 2  # rules, widths, curve and star
    assert any("predicted -1 to -1.5" in trace.get("name", "") for trace in drift["data"])
    assert "build(4096)" in page
    assert "mup transfers; standard does not transfer" in page
    assert page.count("<tr>") == 1 + 8 + 1 + 2
