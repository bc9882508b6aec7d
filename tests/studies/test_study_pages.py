"""Pages of the studies: every table and time is what the records give today."""

from pathlib import Path

import pytest

from studies.architectures import run as architectures
from studies.batch_tokens import run as batch_tokens
from studies.depth import run as depth
from studies.experts import run as experts
from studies.ladder import run as ladder
from studies.optimizers import run as optimizers
from studies.pieces import Records
from studies.rank import run as rank

PAGES = Path(__file__).parents[2] / "docs/studies"
STUDIES = [architectures, batch_tokens, depth, experts, ladder, optimizers, rank]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.FOLDER.name)
def test_a_page_has_what_its_records_give(study, capsys):
    page = (PAGES / f"{study.FOLDER.name.replace('_', '-')}.md").read_text()
    assert f'--8<-- "studies/{study.FOLDER.name}/PROTOCOL.md:3"' in page
    if Records(study.FOLDER).read().empty:
        assert "No piece of this study has run yet." in page
        return
    assert study.main(["--report"]) == 0
    printed = capsys.readouterr().out.splitlines()
    claimed = [line for line in printed if line.startswith(("|", "The times of all pieces"))]
    assert len(claimed) > 3
    missing = [line for line in claimed if line not in page]
    assert not missing, "print `--report` again and put its tables into the page"
