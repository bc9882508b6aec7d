"""`orderone check`: run a coordinate check of a small model, or of the user's model."""

import json as json_format
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orderone.cli import show
from orderone.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, NEGATIVE, OK
from orderone.cli.files import check_files, check_records, wrote
from orderone.cli.help import Help
from orderone.cli.settings import read_rules, read_setting, read_start
from orderone.cli.subject import Selection, Subject, read_axis, selected
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.progress import bar

if TYPE_CHECKING:
    from orderone.measure import Check

STATUS = {"PASS": OK, "FAIL": NEGATIVE, "UNCLEAR": INCONCLUSIVE}
HELP = Help(
    example="orderone check --model gpt2 --widths 64:512 --rule mup --lr 3e-3",
    groups={
        "Model and sizes": ("model", "widths", "depths", "builder"),
        "Other axes of scale": ("batch_sizes", "tokens", "experts", "ranks", "repetitions"),
        "Data": ("batch", "length", "data", "batches"),
        "Rule": (
            *("rule", "depth", "decay", "horizon"),
            *("expert_rule", "rank_rule", "repetition_rule", "init"),
        ),
        "Optimizer": ("optimizer", "lr", "weight_decay"),
        "Amount of work": ("steps", "seeds", "first_seed", "precision", "threads"),
        "Output": ("html", "png", "save", "json"),
    },
)


def check(
    model: str | None = None,
    widths: str | None = None,
    depths: str | None = None,
    batch_sizes: str | None = None,
    tokens: str | None = None,
    experts: str | None = None,
    ranks: str | None = None,
    repetitions: str | None = None,
    rule: str = "mup",
    optimizer: str = "adamw",
    lr: str | None = None,
    weight_decay: str | None = None,
    depth: str | None = None,
    decay: str | None = None,
    horizon: str | None = None,
    expert_rule: str | None = None,
    rank_rule: str | None = None,
    repetition_rule: str | None = None,
    init: str | None = None,
    steps: int = 4,
    seeds: int = 3,
    first_seed: int = 0,
    precision: str = "float32",
    batch: int | None = None,
    length: int | None = None,
    builder: str | None = None,
    data: str | None = None,
    batches: str | None = None,
    threads: int = 1,
    html: str | None = None,
    png: str | None = None,
    save: str | None = None,
    json: bool = False,
) -> None:
    """Train small models of several widths (or sizes on another axis), fit exponents to the sizes
    of activations and updates, and compare them with what the rule predicts.

    Exit codes: 0 PASS, 1 FAIL, 3 UNCLEAR (inconclusive), 2 wrong input, 130 interrupted (results
    so far are printed).

    Args:
        model: gpt2 (tied) or llama, trained on text of the Python standard library; vit or mlp,
            trained on scikit-learn's digits. Default: gpt2.
        widths: Widths: 64:1024 doubles from 64 up to 1024; 64,96,128 is a list. With several
            --depths, one width. Default: 64:512.
        depths: Numbers of layers, written in the same way, to check growth with depth. Default: 2.
        batch_sizes: Batch sizes to check instead of widths, such as 32:128: one model trains on the
            same samples in batches of each size, for --steps steps of the largest. Take more
            steps than for widths, 24 for example.
        tokens: Amounts of training tokens to check instead of widths, such as 1000:4000: one model
            trains for --steps steps with the smallest amount, for more with the others.
        experts: Numbers of experts to check instead of widths; --builder is a function of it.
        ranks: Ranks of adapters (LoRA) to check instead of widths; --builder is a function of it.
        repetitions: Numbers of queries that share a key (grouped-query attention) to check instead
            of widths; --builder is a function of it.
        rule: sp, ntk, mup, mf, standard, neural-tangent, hybrid or maximal-update.
        optimizer: sgd, adam, adamw, adafactor, muon, lion, rmsprop, nadam or adagrad;
            muon:match_rms_adamw is Muon with the learning-rate factor of that name in torch.
        lr: Learning rate of the smallest model; or one for each role or pattern of tensors:
            default=3e-3,embedding=1e-2,*.q_proj.weight=1e-3. Default: the default of torch.optim.
        weight_decay: Weight decay of the smallest model, like --lr. Default: the default of
            torch.optim.
        depth: Scale residual branches with the number of layers L: sqrt (1/sqrt(L)) or completep
            (1/L). Default: no scaling.
        decay: How weight decay follows the size of the model, as for `orderone plan`. Default:
            independent.
        horizon: Rule for --batch-sizes and --tokens: sde or power. Default: sde.
        expert_rule: Rule for --experts: mup, mssp or jiang. Default: mup.
        rank_rule: Rule for --ranks: mup or mua. Default: mup.
        repetition_rule: Rule for --repetitions: mup or gqa-mup. Default: mup.
        init: Start of the smallest model, as for `orderone plan`: fan-in, or
            default=fan-in,readout=zero. Default: the values of the model's own code.
        steps: Number of updates of every model.
        seeds: Number of models at every size.
        first_seed: Seed of the first model at every size, and of the batch.
        precision: float32, bfloat16 or float16 (autocast), or float64.
        batch: Texts or images in the batch, which is the same at every step, except with --tokens.
            Default: 16. With --builder, samples in a batch of --data; by default as --data has it.
        length: Bytes of a text. Default: 64.
        builder: Your model instead of --model: package.module:function, a function of the width
            (of the depth with --depths, and so on; without arguments with --batch-sizes and
            --tokens, or of one width with --widths). The current folder is searched.
        data: Data for --builder: package.module:name of a DataLoader, a list of batches, a data
            set (with --batch), a function of (step, seed) that returns a batch, or a function
            without arguments that returns one of these.
        batches: The same as --data.
        threads: Number of torch CPU threads. Small models are fastest with one.
        html: Write a page with all figures to this file. It opens in any browser, offline too.
        png: Write a picture of the largest deviations to this file.
        save: Write all records to this file (.jsonl or .parquet).
        json: Print JSON instead of a table.
    """
    files = {"html": html, "png": png, "save": save}
    check_records(save)
    check_files(files)
    first = count(first_seed, "first-seed", least=0)
    axis = read_axis(
        batch_sizes=batch_sizes,
        tokens=tokens,
        experts=experts,
        ranks=ranks,
        repetitions=repetitions,
    )
    if axis is None or not axis.is_of_training:
        refuse_unused("sizes of a model", horizon=horizon)
    number = count(threads, "threads")
    data_name = _data_name(data, batches)
    if builder:
        refuse_unused("--builder", model=model, length=length)
    options: dict[str, Any] = {
        "rule": rule,
        "optimizer": optimizer,
        "lr": read_setting(lr, "lr"),
        "weight_decay": read_setting(weight_decay, "weight_decay"),
        "depth": depth,
        "init": read_start(init),
        "steps": steps,
        "precision": precision,
        "seeds": range(first, first + count(seeds, "seeds")),
    }
    rule_options = {"expert_rule": expert_rule, "rank_rule": rank_rule}
    options |= read_rules(horizon=horizon, repetition_rule=repetition_rule, **rule_options)
    if decay is not None:
        options["decay"] = decay
    if builder:
        options["batch_size"] = batch
    chosen = Selection(model, builder, widths, depths, data_name, first, batch, length)
    with explained(), show.threads(number):
        subject = selected(chosen, axis)
        result = run(subject, quiet=json, **options)
    _finish(result, subject, files, json)


def _data_name(data: str | None, batches: str | None) -> str | None:
    """Return the value of --data or --batches, which mean the same."""
    if data is not None and batches is not None:
        message = "--data and --batches mean the same; remove one of them"
        raise InputError(message, "given-twice", argument="batches")
    return data or batches


def _finish(
    result: "Check", subject: Subject, files: dict[str, str | None], json: bool
) -> NoReturn:
    """Print and write the result, and exit with its verdict."""
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

    with bar("planning", quiet) as progress:
        return coord_check(
            subject.build, batches=subject.batches, progress=progress, **subject.sizes, **options
        )


def _show(result: "Check", about: str, json: bool) -> None:
    if json:
        show.print_json(_record(result))
        return
    out = show.console()
    out.print(about)
    out.print(show.prose(str(result), out.width))


def _record(result: "Check") -> dict[str, object]:
    table = str(result.exponents.to_json(orient="records", double_precision=15))  # NaN is null
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
def explained(*handled: type[Exception]) -> Iterator[None]:
    """Turn errors of any type into an InputError, printed in one line.

    The exit code must not be 1, which means FAIL. The caller handles errors of the types `handled`.
    """
    try:
        yield
    except (ValueError, *handled):
        raise
    except SystemExit as error:  # the user's model called exit; its status is not a verdict
        message = f"the model called exit (status {error.code})"
        raise InputError(message, "model-raised-error") from error
    except (ImportError, OSError) as error:
        raise InputError(str(error)) from error
    except Exception as error:  # the user's model may raise anything
        message = f"{type(error).__name__}: {error}{_place(error)}"
        raise InputError(message, "model-raised-error") from error


def _place(error: Exception) -> str:
    """Return the last line of the user's code in the traceback, as " (file, line)"."""
    libraries = (str(Path(__file__).parents[1]), "site-packages", sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(folder in frame.filename for folder in libraries):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""
