"""`orderone sweep`: train small models, and say whether the best learning rate transfers."""

import json as json_format
import sys
from typing import TYPE_CHECKING, Any

from orderone.cli import show
from orderone.cli.check import INTERRUPTED, explained
from orderone.cli.files import check_files, wrote
from orderone.cli.subject import read_range
from orderone.cli.unused import no_use
from orderone.core.exact import count

if TYPE_CHECKING:
    import pandas

    from orderone.cli.tasks import DataOptions, Setting
    from orderone.sweeping.result import Sweep
    from orderone.sweeping.space import LogGrid
    from orderone.sweeping.target import Target
    from orderone.sweeping.transfer import Transfer

STATUS = {"transfers": 0, "does not transfer": 1, "not enough data": 3}


def sweep(
    task: str | None = None,
    model: str | None = None,
    widths: str = "64:256",
    depths: str | None = None,
    rules: str = "mup",
    optimizer: str = "adamw",
    lr: str = "1e-4:1e-1:10",
    weight_decay: float | None = None,
    depth: str | None = None,
    base: int | None = None,
    steps: int = 200,
    schedule: str = "constant",
    warmup: int = 0,
    clip: float | None = None,
    seeds: int = 3,
    first_seed: int = 0,
    batch: int | None = None,
    length: int | None = None,
    source: str | None = None,
    tokenizer: str | None = None,
    root: str | None = None,
    size: int | None = None,
    builder: str | None = None,
    data: str | None = None,
    precision: str = "float32",
    device: str | None = None,
    store: str = "runs.db",
    executor: str | None = None,
    ray: str | None = None,
    workers: int | None = None,
    together: int | None = None,
    sampler: str = "grid",
    trials: int | None = None,
    pruner: str | None = None,
    target: int | None = None,
    threads: int = 1,
    html: str | None = None,
    png: str | None = None,
    json: bool = False,
) -> None:
    """Train every width at every learning rate, find the best rate of each, and judge whether it
    stays where it is.

    What is done is kept in the store: the same command again runs only what is missing, also after
    a crash or Ctrl-C.

    Exit status, by the verdict on the best rule: 0 transfers, 1 does not, 3 not enough data, 2
    wrong input (or every trial failed), 130 interrupted. With a single size there is no verdict,
    and 0 means done.

    Args:
        task: lm (the next token of a text), denoising (a text of which spans are masked), digits
            (scikit-learn's images), mnist, fashion-mnist, cifar10, or imagefolder (images of
            yours). Default: lm.
        model: For lm: gpt (orderone's, the default), or gpt2 or llama of Hugging Face; for
            denoising: bart (orderone's); for images: mlp (the default), transformer (orderone's),
            or vit of Hugging Face.
        widths: 64:1024 doubles from 64 up to 1024; 64,96,128 is a list.
        depths: The same for the number of layers. Default: 2.
        rules: One or several, to be compared: sp,mup.
        optimizer: sgd, adam, adamw, adafactor, muon, lion, rmsprop, nadam or adagrad.
        lr: 1e-4:1e-1:16 is 16 values at equal ratios; 1e-3,3e-3 is a list. Of the smallest size, or
            of --base.
        weight_decay: At the smallest size. Default: that of torch.optim.
        depth: sqrt (residual branches times 1/sqrt(L)) or completep (1/L).
        base: The size that learning rates belong to. Default: the smallest.
        steps: Updates of every model.
        schedule: Of all learning rates: constant, linear or cosine.
        warmup: Steps of rising learning rates before that.
        clip: The largest norm of a gradient.
        seeds: Trainings at every point.
        first_seed: Counted from here.
        batch: Texts or images in a batch. Default: 16.
        length: Tokens in a text. Default: 64.
        source: Text for lm and denoising: python (the standard library, the default), sotu,
            gutenberg or imdb (in --root), or a file or folder of yours.
        tokenizer: Of text: bytes (the default), gpt2 (in --root), or a tokenizer.json or folder of
            yours.
        root: The folder of data sets, by default data; for imagefolder, the one with a folder of
            images for each class.
        size: Of images from a folder, which are cut to squares. Default: 224.
        builder: Your model instead: package.module:function of width (and depth), seen from the
            current folder.
        data: What to train it on: package.module:thing, a task or a function of (step, seed) that
            returns a batch.
        precision: float32, bfloat16 (autocast) or float64.
        device: cpu or cuda. Default: a GPU if there is one.
        store: The file that results are kept in.
        executor: here, processes or ray. Default: here.
        ray: Address of a Ray cluster, or auto.
        workers: Processes, or tasks at a time. Default: one a GPU or core.
        together: Models that are trained in one program. Default: as many as fit.
        sampler: grid, random, tpe or cmaes.
        trials: Points to try for every rule and size, if not the grid.
        pruner: median or halving: stop trials early that will not be the best.
        target: Print settings for a model of this size; like drawings, this needs several widths or
            depths.
        threads: Of torch.
        html: Draw the study in this file, which opens in any browser without a network.
        png: Draw it in this file.
        json: Print JSON instead of tables.
    """
    from orderone.cli.tasks import DataOptions
    from orderone.sweeping.result import Interrupted

    check_files({"html": html, "png": png})
    space: dict[str, Any] = {"lr": read_rates(lr), "seed": _seeds(first_seed, seeds)}
    if weight_decay is not None:
        space["weight_decay"] = [weight_decay]
    sizes = {"widths": read_range(widths, "widths")}
    if depths:
        sizes["depths"] = read_range(depths, "depths")
    if all(len(values) == 1 for values in sizes.values()):
        no_use(
            "a sweep of one size",
            "give several --widths or --depths",
            target=target,
            html=html,
            png=png,
        )
    options: dict[str, Any] = {
        "rule": rules.split(","),
        "optimizer": optimizer,
        "base": base,
        "steps": steps,
        "schedule": schedule,
        "warmup": warmup,
        "clip": clip,
        "precision": precision,
        "device": device,
        "store": store,
        "workers": workers,
        "address": ray,
        "executor": executor or ("ray" if ray else "here"),
        "together": together,
        "sampler": sampler,
        "trials": trials,
        "pruner": pruner,
        "progress": not json,
    }
    if depth:
        options["depth"] = depth
    try:
        with explained(), show.threads(count(threads, "threads")):
            data_options = DataOptions(source, tokenizer, root, size, batch, length)
            setting = _setting(task, model, data_options, builder, data, device, sizes["widths"])
            result = _run(setting, space, sizes, options)
    except Interrupted as interrupted:
        show_sweep(interrupted.sweep, None, None, json)
        message = interrupted.args[0].replace("the same call", "the same command")
        print(f"orderone: {message}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _all_failed(result)
    study = None
    if any(len(values) > 1 for values in sizes.values()):
        study = result.transfer()
    settings = None
    if target is not None and study is not None:
        settings = settings_for(study, target)
    show_sweep(result, study, settings, json)
    _write(study, setting.name, {"html": html, "png": png})
    sys.stdout.flush()
    if study is None:
        sys.exit(0)
    sys.exit(STATUS[study.verdict])


def read_rates(text: str) -> "LogGrid | list[float]":
    """Read learning rates: 1e-4:1e-1:16 is 16 values at equal ratios; 1e-3,3e-3 is a list."""
    from orderone.sweeping.space import log_grid

    words = text.split(":" if ":" in text else ",")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or (":" in text and (len(numbers) != 3 or not numbers[2].is_integer())):
        raise ValueError(
            f"lr: expected 1e-4:1e-1:16 (from, to, how many) or 1e-3,3e-3; got {text!r}"
        )
    if ":" in text:
        return log_grid(numbers[0], numbers[1], int(numbers[2]))
    return numbers


def _seeds(first: int, number: int) -> range:
    start = count(first, "first-seed", least=0)
    return range(start, start + count(number, "seeds"))


def _setting(
    task: str | None,
    model: str | None,
    data_options: "DataOptions",
    builder: str | None,
    data: str | None,
    device: str | None,
    widths: list[int],
) -> "Setting":
    from orderone.cli.tasks import TASK, read_task, user_task

    if builder:
        return user_task(builder, data, data_options, task, model)
    no_use("a sweep without --builder", data=data)
    if task is None:
        task = TASK
    setting = read_task(task, model, data_options, device)
    odd = [width for width in widths if width % setting.multiple]
    if odd:
        raise ValueError(
            f"widths: expected multiples of {setting.multiple}, the size of a head; got {odd[0]}"
        )
    return setting


def _run(
    setting: "Setting", space: dict[str, Any], sizes: dict[str, Any], options: dict[str, Any]
) -> "Sweep":
    from orderone.sweeping.sweep import sweep as run

    return run(setting.build, space, data=setting.data, **sizes, **options)


def _all_failed(result: "Sweep") -> None:
    """Raise a ValueError if every trial failed."""
    errors = [outcome.error for outcome in result.outcomes.values()]
    if errors and None not in errors:
        raise ValueError(f"every trial failed; the first: {errors[0]}")


def settings_for(study: "Transfer", size: int) -> "Target | str":
    """Return settings for the target; or why there are none, which is no wrong input."""
    sizes: dict[str, Any] = {study.axis: size}
    try:
        return study.target(**sizes)
    except ValueError as error:
        return str(error)


# --- showing --------------------------------------------------------------------------------------


def show_sweep(
    sweep: "Sweep", study: "Transfer | None", target: "Target | str | None", json: bool
) -> None:
    """Print the results, the study and settings for the target, as far as there are any."""
    if json:
        show.print_json(_record(sweep, study, target))
        return
    out = show.console()
    out.print(f"{sweep.summary}; {sweep.ran} of them now, kept in {sweep.store}", soft_wrap=True)
    if sweep.outcomes:
        best = sweep.best()
        rows = []
        for row in best.itertuples(index=False):
            rows.append([_cell(value) for value in row])
        out.print(show.table("Best of the grid, mean over seeds", list(best), rows))
    texts = list(sweep.notes)
    if study is not None:
        texts.append(str(study))
    if target is not None:
        texts.append(str(target))
    for text in texts:
        out.print(show.coloured(text), soft_wrap=True)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _record(
    sweep: "Sweep", study: "Transfer | None", target: "Target | str | None"
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
    if study is not None:
        record["verdict"] = study.verdict
        record["rule"] = study.chosen
        record["optima"] = _rows(study.frame)
        record["drifts"] = _rows(study.drifts)
    if target is not None:
        record["target"] = getattr(target, "snippet", target)
    return record


def _rows(frame: "pandas.DataFrame") -> list[dict[str, object]]:
    """Return rows for JSON: NaN and infinity become null."""
    return json_format.loads(str(frame.to_json(orient="records", double_precision=15)))


def _write(study: "Transfer | None", name: str, files: dict[str, str | None]) -> None:
    from orderone.report import write_transfer, write_transfer_png

    for kind, write in (("html", write_transfer), ("png", write_transfer_png)):
        path = files[kind]
        if path is None or study is None:
            continue
        with explained():
            write(study, path, title=f"Transfer of {name}")
        wrote(path)
