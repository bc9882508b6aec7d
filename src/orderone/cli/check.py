"""`orderone check`: a coordinate check of a small model on embedded data, or of your own."""

import json as json_format
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderone.cli import show
from orderone.cli.files import check_files, check_records, wrote
from orderone.cli.subject import Subject, known_model, read_sizes, user_model
from orderone.cli.unused import no_use
from orderone.core.exact import count
from orderone.core.progress import bar

if TYPE_CHECKING:
    from orderone.measure import Check

STATUS = {"PASS": 0, "FAIL": 1, "UNCLEAR": 3}
INTERRUPTED = 130


def check(
    model: str | None = None,
    widths: str | None = None,
    depths: str | None = None,
    rule: str = "mup",
    optimizer: str = "adamw",
    lr: float | None = None,
    weight_decay: float | None = None,
    depth: str | None = None,
    steps: int = 4,
    seeds: int = 3,
    first_seed: int = 0,
    batch: int | None = None,
    length: int | None = None,
    builder: str | None = None,
    batches: str | None = None,
    threads: int = 1,
    html: str | None = None,
    png: str | None = None,
    save: str | None = None,
    json: bool = False,
) -> None:
    """Train small models of several sizes, fit exponents to all they compute, and judge them by
    what the rule predicts.

    Exit status: 0 PASS, 1 FAIL, 3 UNCLEAR, 2 wrong input, 130 interrupted (what was measured is
    shown).

    Args:
        model: gpt2 (tied) or llama on the text of the Python standard library; vit or mlp on
            scikit-learn's digits. Default: gpt2.
        widths: 64:1024 doubles from 64 up to 1024; 64,96,128 is a list. With --depths, one width.
            Default: 64:512.
        depths: The same for the number of layers, to see what grows with depth. Default: 2.
        rule: sp, ntk, mup, mf, standard, neural-tangent, hybrid or maximal-update.
        optimizer: sgd, adam, adamw, adafactor, muon, lion, rmsprop, nadam or adagrad.
        lr: The learning rate at the smallest size. Default: that of torch.optim.
        weight_decay: At the smallest size. Default: that of torch.optim.
        depth: sqrt (residual branches times 1/sqrt(L)) or completep (1/L).
        steps: Updates of every model.
        seeds: Models at every size.
        first_seed: Of the models, counted from here, and of the batch.
        batch: Texts or images in the batch, which is the same at every step. Default: 16.
        length: Bytes in a text. Default: 64.
        builder: Your model instead: package.module:function of the width (or depth), seen from the
            current folder.
        batches: What to train it on: package.module:function without arguments that returns a
            batch, or one for each step.
        threads: Of torch. Small models are fastest with one.
        html: Draw all of it in this file, which opens in any browser without a network.
        png: Draw the worst of it in this file.
        save: Write every record to this file, .jsonl or .parquet.
        json: Print JSON instead of a table.
    """
    files = {"html": html, "png": png, "save": save}
    check_records(save)
    check_files(files)
    first = count(first_seed, "first-seed", least=0)
    shape = {"batch": batch, "length": length}
    sizes = read_sizes(widths, depths)
    number = count(threads, "threads")
    if builder:
        no_use("--builder", model=model, **shape)
        whose = "--builder, a function of what grows,"
        if len(sizes["widths"]) > 1:
            no_use(whose, depths=depths)
        else:
            no_use(whose, widths=widths)
    options = {
        "rule": rule,
        "optimizer": optimizer,
        "lr": lr,
        "weight_decay": weight_decay,
        "depth": depth,
        "steps": steps,
        "seeds": range(first, first + count(seeds, "seeds")),
    }
    with explained(), show.threads(number):
        if builder:
            subject = user_model(builder, sizes, batches)
        else:
            subject = known_model(model, sizes, batches, first, **shape)
        result = run(subject, quiet=json, **options)
    result = replace(result, provenance={**result.provenance, "model": subject.name})
    _show(result, subject.about, json)
    _write(result, subject.name, files)
    sys.stdout.flush()
    if result.interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(STATUS[result.verdict])


def run(subject: Subject, quiet: bool = False, **options: Any) -> "Check":
    """Run the check, with a progress bar on a terminal."""
    from orderone.measure import coord_check

    with bar("looking at the models", quiet) as progress:
        return coord_check(
            subject.build, batches=subject.batches, progress=progress, **subject.sizes, **options
        )


def _show(result: "Check", about: str, json: bool) -> None:
    if json:
        show.print_json(_record(result))
        return
    out = show.console()
    out.print(about, soft_wrap=True)
    out.print(show.coloured(str(result)), soft_wrap=True)


def _record(result: "Check") -> dict[str, object]:
    table = str(result.exponents.to_json(orient="records", double_precision=15))  # NaN as null
    return {
        "verdict": result.verdict,
        "passed": result.passed,
        "interrupted": result.interrupted,
        "causes": result.causes,
        "notes": result.notes,
        "provenance": result.provenance,
        "exponents": json_format.loads(table),
    }


# --- files ----------------------------------------------------------------------------------------


def _write(result: "Check", name: str, files: dict[str, str | None]) -> None:
    from orderone.report import write_html, write_png

    title = f"Coordinate check of {name}"
    writers: dict[str, Callable[[str], object]] = {
        "html": lambda path: write_html(result, path, title=title),
        "png": lambda path: write_png(result, path, title=title),
        "save": result.save,
    }
    for kind, path in files.items():
        if path is not None:
            with explained():
                writers[kind](path)
            wrote(path)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of any kind into wrong input, in one line: exit status 1 would say FAIL."""
    try:
        yield
    except ValueError:
        raise
    except SystemExit as error:  # the user's model called exit; its status is no verdict
        raise ValueError(f"the model ended the program (status {error.code})") from error
    except (ImportError, OSError) as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # the user's model may raise anything
        raise ValueError(f"{type(error).__name__}: {error}{_place(error)}") from error


def _place(error: Exception) -> str:
    """Return the last line of the user's code that the error came through."""
    libraries = (str(Path(__file__).parents[1]), "site-packages", sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(folder in frame.filename for folder in libraries):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""
