"""Results of a sweep: settings for the target, tables, JSON, pages and pictures."""

import json as json_format
from typing import TYPE_CHECKING, Any

from orderone.cli import show
from orderone.cli.check import explained
from orderone.cli.files import wrote

if TYPE_CHECKING:
    import pandas

    from orderone.sweeping.combinations import Transfers
    from orderone.sweeping.result import Sweep
    from orderone.sweeping.target import Target
    from orderone.sweeping.transfer import Transfer


def settings_for(study: "Transfer", size: int) -> "Target | str":
    """Return settings for the target, or the reason why there are none.

    A missing answer is a result of the study, not wrong input.
    """
    sizes: dict[str, Any] = {study.axis: size}
    try:
        return study.target(**sizes)
    except ValueError as error:
        return str(error)


def show_sweep(
    sweep: "Sweep", studies: "Transfers | None", target: "Target | str | None", json: bool
) -> None:
    """Print the results; also the studies and the settings for the target, unless they are None.

    Of several studies, only that with the lowest loss is printed whole.
    """
    if json:
        show.print_json(_record(sweep, studies, target))
        return
    out = show.console()
    out.print(f"{sweep.summary}; {sweep.ran} trained now, saved in {sweep.store}")
    if sweep.outcomes:
        best = sweep.best()
        rows = []
        for row in best.itertuples(index=False):
            rows.append([_cell(value) for value in row])
        out.print(show.table("Best point of each size, mean over seeds", list(best), rows))
    texts = list(sweep.notes)
    if studies is not None:
        from orderone.sweeping.combinations import described

        if len(studies.studies) > 1 or studies.failed:
            texts += [str(studies), f"The study of {described(studies.best.where)}:"]
        texts.append(str(studies.best))
    if isinstance(target, str):  # why there is none
        texts.append(target)
    for text in texts:
        out.print(show.prose(text, out.width))
    if target is not None and not isinstance(target, str):
        out.print(show.coloured(str(target)), soft_wrap=True)  # it contains Python code


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _record(
    sweep: "Sweep", studies: "Transfers | None", target: "Target | str | None"
) -> dict[str, object]:
    record: dict[str, object] = {
        "summary": sweep.summary,
        "store": sweep.store,
        "ran": sweep.ran,
        "notes": sweep.notes,
        "best": [],
        "trials": _rows(sweep.frame),
    }
    if sweep.outcomes:
        record["best"] = _rows(sweep.best())
    if studies is not None:
        study = studies.best
        record["combinations"] = _rows(studies.frame)
        record["where"] = study.where
        record["verdict"] = study.verdict
        record["rule"] = study.chosen
        record["optima"] = _rows(study.frame)
        record["drifts"] = _rows(study.drifts)
    if target is not None:
        record["target"] = getattr(target, "snippet", target)
    return record


def _rows(frame: "pandas.DataFrame") -> list[dict[str, object]]:
    """Return the rows of a frame for JSON; NaN and infinity become null."""
    return json_format.loads(str(frame.to_json(orient="records", double_precision=15)))


def write_transfer_files(
    study: "Transfer | None", target: "Target | None", name: str, files: dict[str, str | None]
) -> None:
    from orderone.report import write_transfer, write_transfer_png

    if study is None:
        return
    title = f"Transfer of {name}"
    if (page := files["html"]) is not None:
        with explained():
            write_transfer(study, page, target, title)
        wrote(page)
    if (picture := files["png"]) is not None:
        with explained():
            write_transfer_png(study, picture, title)
        wrote(picture)
