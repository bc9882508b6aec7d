"""`orderone sweep`: train small models over learning rates and widths, and say whether the best
rate transfers."""

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
    from orderone.cli.tasks import Given, Setting
    from orderone.sweeping.result import Sweep
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
    from orderone.cli.tasks import Given
    from orderone.sweeping.result import Interrupted

    check_files({"html": html, "png": png})
    space: dict[str, Any] = {"lr": read_rates(lr), "seed": _seeds(first_seed, seeds)}
    space |= {} if weight_decay is None else {"weight_decay": [weight_decay]}
    sizes = {"widths": read_range(widths, "widths")} | (
        {"depths": read_range(depths, "depths")} if depths else {}
    )
    if all(len(each) == 1 for each in sizes.values()):
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
    options |= {"depth": depth} if depth else {}
    try:
        with explained(), show.threads(count(threads, "threads")):
            given = Given(source, tokenizer, root, size, batch, length)
            setting = _setting(task, model, given, builder, data, device, sizes["widths"])
            found = _run(setting, space, sizes, options)
    except Interrupted as interrupted:
        show_sweep(interrupted.sweep, None, None, json)
        print(
            f"orderone: {interrupted.args[0].replace('the same call', 'the same command')}",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)
    _all_failed(found)
    study = _study(found, sizes)
    show_sweep(
        found, study, None if target is None or study is None else settings_for(study, target), json
    )
    _write(study, setting.name, {"html": html, "png": png})
    sys.stdout.flush()
    sys.exit(0 if study is None else STATUS[study.verdict])


def read_rates(text: str) -> Any:
    """1e-4:1e-1:16 is 16 values at equal ratios; 1e-3,3e-3 is a list."""
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
    given: "Given",
    builder: str | None,
    data: str | None,
    device: str | None,
    widths: list[int],
) -> "Setting":
    from orderone.cli.tasks import TASK, own_task, read_task

    if builder:
        return own_task(builder, data, given, task, model)
    no_use("a sweep without --builder", data=data)
    setting = read_task(TASK if task is None else task, model, given, device)
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


def _all_failed(found: "Sweep") -> None:
    errors = [outcome.error for outcome in found.outcomes.values()]
    if errors and all(error is not None for error in errors):
        raise ValueError(f"every trial failed; the first: {errors[0]}")


def _study(found: "Sweep", sizes: dict[str, list[int]]) -> "Transfer | None":
    if any(len(several) > 1 for several in sizes.values()):
        return found.transfer()
    return None


def settings_for(study: "Transfer", size: int) -> Any:
    """Settings for the target; or why there are none, which is no wrong input."""
    sizes: dict[str, Any] = {study.axis: size}
    try:
        return study.target(**sizes)
    except ValueError as error:
        return str(error)


# --- showing --------------------------------------------------------------------------------------


def show_sweep(found: "Sweep", study: "Transfer | None", target: Any, json: bool) -> None:
    if json:
        show.print_json(_record(found, study, target))
        return
    out = show.console()
    out.print(f"{found.summary}; {found.ran} of them now, kept in {found.store}", soft_wrap=True)
    if found.outcomes:
        best = found.best()
        rows = [[_cell(value) for value in row] for row in best.itertuples(index=False)]
        out.print(show.table("Best of the grid, mean over seeds", list(best), rows))
    for text in (*found.notes, *(str(told) for told in (study, target) if told is not None)):
        out.print(show.coloured(text), soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _record(found: "Sweep", study: "Transfer | None", target: Any) -> dict[str, Any]:
    record = {
        "summary": found.summary,
        "store": found.store,
        "ran": found.ran,
        "notes": found.notes,
        "best": _rows(found.best()) if found.outcomes else [],
        "trials": _rows(found.frame),
    }
    if study is not None:
        record |= {
            "verdict": study.verdict,
            "rule": study.chosen,
            "optima": _rows(study.frame),
            "drifts": _rows(study.drifts),
        }
    return record | ({} if target is None else {"target": getattr(target, "snippet", target)})


def _rows(frame: Any) -> list[dict[str, Any]]:
    return json_format.loads(
        frame.to_json(orient="records", double_precision=15)
    )  # NaN and infinity as null


def _write(study: "Transfer | None", name: str, files: dict[str, str | None]) -> None:
    from orderone.report import write_transfer, write_transfer_png

    for kind, write in (("html", write_transfer), ("png", write_transfer_png)):
        path = files[kind]
        if path is None or study is None:
            continue
        with explained():
            write(study, path, title=f"Transfer of {name}")
        wrote(path)
