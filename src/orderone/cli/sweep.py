"""`orderone sweep`: tune small models and judge whether the best learning rate transfers."""

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import tyro

from orderone.cli import show
from orderone.cli.check import explained
from orderone.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, NEGATIVE, OK
from orderone.cli.files import check_files
from orderone.cli.help import Help
from orderone.cli.settings import read_axes, read_rules, read_start, read_values
from orderone.cli.subject import read_range
from orderone.cli.sweep_results import settings_for, show_sweep, write_transfer_files
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count

if TYPE_CHECKING:
    from orderone.cli.tasks import DataOptions, Setting
    from orderone.sweeping.result import Sweep

STATUS = {"transfers": OK, "does not transfer": NEGATIVE}  # others: INCONCLUSIVE
HELP = Help(
    example="orderone sweep --rules standard,mup --widths 64:256 --target 2048 --html t.html",
    groups={
        "Model and sizes": ("model", "widths", "depths", "base", "builder"),
        "Data": ("task", "batch", "length", "source", "tokenizer", "root", "size", "data"),
        "Rule": ("rules", "depth", "decay", "expert_rule", "rank_rule", "repetition_rule"),
        "Optimizer and schedule": (
            "optimizer",
            "lr",
            "weight_decay",
            "init",
            "space",
            "steps",
            "schedule",
            "warmup",
            "clip",
        ),
        "Search": ("tune", "seeds", "first_seed", "sampler", "trials", "pruner"),
        "Execution": (
            "store",
            "device",
            "precision",
            "executor",
            "workers",
            "ray",
            "together",
            "threads",
            "verify",
        ),
        "Output": ("target", "html", "png", "json"),
    },
)


def sweep(
    task: str | None = None,
    model: str | None = None,
    widths: str = "64:256",
    depths: str | None = None,
    rules: str = "mup",
    optimizer: str | None = None,
    lr: str = "1e-4:1e-1:11",
    weight_decay: float | None = None,
    init: str | None = None,
    space: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    depth: str | None = None,
    decay: str | None = None,
    expert_rule: str | None = None,
    rank_rule: str | None = None,
    repetition_rule: str | None = None,
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
    tune: str | None = None,
    target: int | None = None,
    threads: int = 1,
    verify: bool = True,
    html: str | None = None,
    png: str | None = None,
    json: bool = False,
) -> None:
    """Train models of several widths at several learning rates, find the best learning rate of each
    width, and judge whether it stays the same (transfers).

    Finished trials are saved in the store: the same command runs only those that are missing, also
    after a crash or Ctrl-C.

    Exit codes, for the verdict on the best rule: 0 transfers, 1 does not transfer, 3 inconclusive,
    2 wrong input (or every trial failed), 130 interrupted. With one size there is no verdict, and
    0 means done.

    Args:
        task: lm (predict the next token of a text), denoising (restore masked spans of a text),
            digits (scikit-learn's images), mnist, fashion-mnist, cifar10, or imagefolder (your
            images). Default: lm.
        model: For lm: gpt (orderone's, the default), or gpt2 or llama (Hugging Face's). For
            denoising: bart (orderone's). For images: mlp (the default) or transformer
            (orderone's), or vit (Hugging Face's).
        widths: Widths: 64:1024 doubles from 64 up to 1024; 64,96,128 is a list.
        depths: Numbers of layers, written in the same way. Default: 2.
        rules: One rule, or several to compare: standard,mup. `standard` has one learning rate for
            all tensors; `sp` is the standard parameterization with scaled learning rates.
        optimizer: sgd, adam, adamw, adafactor, muon, lion, rmsprop, nadam or adagrad;
            muon:match_rms_adamw is Muon with the learning-rate factor of that name in torch.
            Default: the one that --builder returns beside the model, otherwise adamw.
        lr: Learning rates of the smallest model (or of --base): 1e-4:1e-1:16 means 16 values in
            geometric progression; 1e-3,3e-3 is a list.
        weight_decay: Weight decay of the smallest model. Default: the default of torch.optim.
        init: Initial values of the base: fan-in, zero-residual or another start, or one for each
            role: default=fan-in,readout=zero (`orderone plan --help` lists all). To compare
            several: --space init=keep,fan-in. Default: zero-residual for gpt and gpt2, fan-in for
            the other models of --model, and keep, the values of the model's own code, with
            --builder.
        space: Another setting to try, as NAME=VALUES with values as for --lr: beta2=0.95,0.99, or
            the setting of a role, pattern or optimizer: lr.embedding=1e-3:1e-1:5,
            weight_decay.readout=0, init_scale.*.q_proj.weight=0.5,1. May be repeated.
        depth: Scale residual branches with the number of layers L: sqrt (1/sqrt(L)) or completep
            (1/L). Default: no scaling.
        decay: How weight decay follows the size of the model: independent (lr * weight_decay stays
            constant), proportional (weight_decay stays constant), or another choice of `orderone
            plan --help`. Default: independent.
        expert_rule: How to scale if the number of experts differs from that of the base: mup,
            mssp, jiang or none (no scaling); see docs/axes.md. Default: mup.
        rank_rule: How to scale if the rank of adapters (LoRA) differs from that of the base: mup,
            mua or none; see docs/axes.md. Default: mup.
        repetition_rule: How to scale if the number of queries that share a key (grouped-query
            attention) differs from that of the base: mup, gqa-mup or none; see docs/axes.md.
            Default: mup.
        base: The width (or depth) for which --lr is meant. Default: the smallest.
        steps: Number of updates of every model.
        schedule: Schedule of all learning rates: constant, linear or cosine.
        warmup: Number of warm-up steps.
        clip: Largest norm of the gradient (gradient clipping). Default: no clipping.
        seeds: Number of seeds at every size and learning rate.
        first_seed: The first seed.
        batch: Texts or images in a batch. Default: 16. With --builder, samples of --data in a
            batch; the default is then the batch size that --data has itself.
        length: Tokens of a text. Default: 64.
        source: Text for lm and denoising: python (the standard library, the default); sotu,
            gutenberg, imdb or linux (in --root); or your file or folder.
        tokenizer: Tokenizer for text: bytes (the default), gpt2 (in --root), or your
            tokenizer.json or its folder.
        root: Folder of the data sets. For imagefolder, the folder that has one folder of images
            per class. Default: data.
        size: Side in pixels of images from a folder, which are cropped to squares. Default: 224.
        builder: Your model instead of --model: package.module:function, a function of width (and
            depth). The current folder is searched.
        data: Data for --builder: package.module:name of a DataLoader, a list of batches, a data
            set (with --batch), a task, a function of (step, seed) that returns a batch, or a
            function without arguments that returns one of these.
        precision: float32, bfloat16 or float16 (autocast), or float64.
        device: cpu or cuda. Default: cuda if there is a GPU.
        store: SQLite file for the results.
        executor: Where trials run: here (this process), processes or ray. Default: here; for a
            long study on a CPU, several processes forked from this one (Linux).
        ray: Address of a Ray cluster, or auto. It implies --executor ray.
        workers: Number of processes or Ray tasks. Default: one per GPU or core.
        together: Number of models trained in one stacked program. Default: as many as fit.
        sampler: grid, random, tpe or cmaes.
        trials: Number of points for every rule and size, with a sampler other than grid.
        pruner: Stop poor trials early: median or halving. Default: no pruning.
        tune: The only value is `start`. Instead of studying transfer, search at the smallest
            width for better initial sizes and learning rates of embedding and readout, and for
            a better temperature of attention (a rule does not fix these constants). Models train
            with random values of them (--trials, 24 by default). The best values are then
            compared with the original ones on new seeds.
        target: Print settings for a model of this width (or depth). Needs several --widths or
            --depths, as --html and --png do.
        threads: Number of torch CPU threads.
        verify: Skip the comparison of a stack with models that train alone. (Models of one width
            train in one program, a stack. First, two of them also take two steps alone; if the
            results differ, the models are trained one after another.)
        html: Write a page with the transfer study to this file. It opens in any browser, offline
            too.
        png: Write a picture of the study to this file.
        json: Print JSON instead of tables.
    """
    from orderone.cli.tasks import DataOptions

    files = {"html": html, "png": png}
    check_files(files)
    axes = _axes(space, lr, _seeds(first_seed, seeds), weight_decay)
    sizes = _sizes(widths, depths, target=target, **files)
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
        "executor": executor or ("ray" if ray else None),
        "together": together,
        "sampler": sampler,
        "trials": trials,
        "pruner": pruner,
        "verify": None if verify else False,
        "progress": not json,
    }
    options |= _optional_settings(depth, decay, init)
    options |= read_rules(
        expert_rule=expert_rule, rank_rule=rank_rule, repetition_rule=repetition_rule
    )
    data_options = DataOptions(source, tokenizer, root, size, batch, length)
    call = Call(task, model, data_options, builder, data, axes, sizes, options, threads, json)
    if tune is None:
        _study(call, target, files)
    one_of(tune, ("start",), "tune")
    refuse_unused("--tune", target=target, pruner=pruner, **files)
    _tune(call)


# --- options --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """The options of one command: the model with its data, what to vary, and how to train."""

    task: str | None
    model: str | None
    data_options: "DataOptions"
    builder: str | None
    data: str | None
    axes: dict[str, Any]
    sizes: dict[str, list[int]]
    options: dict[str, Any]
    threads: int
    json: bool

    def start(self, setting: "Setting") -> dict[str, str]:
        """Return the recommended start as a setting, unless the user chose starts."""
        chosen = "init" in self.options or "init" in self.axes
        if chosen or setting.start is None:
            return {}
        return {"init": setting.start}

    def setting(self) -> "Setting":
        """Return the function that builds the models, and their data."""
        from orderone.cli.tasks import TASK, read_task, user_task

        if self.builder:
            return user_task(self.builder, self.data, self.data_options, self.task, self.model)
        remedy = "use --task, or add --builder"
        refuse_unused("a sweep without --builder", remedy, data=self.data)
        task = TASK if self.task is None else self.task
        setting = read_task(task, self.model, self.data_options, self.options["device"])
        indivisible = [width for width in self.sizes["widths"] if width % setting.multiple]
        if indivisible:
            raise InputError(
                f"widths: expected multiples of {setting.multiple}, the head size;"
                f" got {indivisible[0]}",
                argument="widths",
            )
        return setting


def _axes(
    space: tuple[str, ...], lr: str, seeds: range, weight_decay: float | None
) -> dict[str, Any]:
    """Return the values of every setting that varies between trials."""
    axes: dict[str, Any] = {"lr": read_values(lr, "lr"), "seed": seeds}
    if weight_decay is not None:
        axes["weight_decay"] = [weight_decay]
    for name, values in read_axes(space).items():
        if name in axes:
            raise InputError(
                f"space: {name} has an option of its own; use --{name.replace('_', '-')}",
                argument="space",
            )
        axes[name] = values
    return axes


def _sizes(widths: str, depths: str | None, **output: object) -> dict[str, list[int]]:
    """Return widths and depths; refuse the output of a transfer study if there is only one size."""
    sizes = {"widths": read_range(widths, "widths")}
    if depths:
        sizes["depths"] = read_range(depths, "depths")
    if all(len(values) == 1 for values in sizes.values()):
        refuse_unused("a sweep of one size", "use several --widths or --depths", **output)
    return sizes


def _optional_settings(depth: str | None, decay: str | None, init: str | None) -> dict[str, Any]:
    """Return those that were passed; the sweep has its own defaults for the others."""
    chosen: dict[str, Any] = {}
    if depth:
        chosen["depth"] = depth
    if decay is not None:
        chosen["decay"] = decay
    if init is not None:
        chosen["init"] = read_start(init)
    return chosen


def _seeds(first: int, number: int) -> range:
    start = count(first, "first-seed", least=0)
    return range(start, start + count(number, "seeds"))


# --- training -------------------------------------------------------------------------------------


def _study(call: Call, target: int | None, files: dict[str, str | None]) -> NoReturn:
    """Train all models, print and write the results, and exit with the verdict."""
    setting, result = _trained(call)
    _all_failed(result)
    study = None
    several = None
    if any(len(values) > 1 for values in call.sizes.values()):
        several = result.transfers()
        study = several.best
    settings = None
    if target is not None and study is not None:
        settings = settings_for(study, target)
    show_sweep(result, several, settings, call.json)
    target_settings = None
    if not isinstance(settings, str):  # otherwise it says why there are none
        target_settings = settings
    write_transfer_files(study, target_settings, setting.name, files)
    sys.stdout.flush()
    if study is None:
        sys.exit(OK)
    sys.exit(STATUS.get(study.verdict, INCONCLUSIVE))


def _trained(call: Call) -> tuple["Setting", "Sweep"]:
    """Run the sweep; print the finished trials and exit if it was interrupted."""
    from orderone.sweeping.result import ClusterLost, Interrupted
    from orderone.sweeping.sweep import sweep as run

    try:
        with explained(ClusterLost), show.threads(count(call.threads, "threads")):
            setting = call.setting()
            result = run(
                setting.build,
                call.axes | call.start(setting),
                data=setting.data,
                batch_size=setting.size,
                **call.sizes,
                **call.options,
            )
    except (Interrupted, ClusterLost) as stopped:
        show_sweep(stopped.sweep, None, None, call.json)
        message = stopped.args[0].replace("the same call", "the same command")
        print(f"orderone: {message}", file=sys.stderr)
        sys.exit(INTERRUPTED if isinstance(stopped, Interrupted) else INCONCLUSIVE)
    return setting, result


def _tune(call: Call) -> NoReturn:
    """Search the constants of the start at the smallest width, print their effect, and exit."""
    from orderone.sweeping.tune_start import TRIALS, tune_start

    with explained(), show.threads(count(call.threads, "threads")):
        setting = call.setting()
        chosen = call.start(setting) | _tune_options(call)
        result = tune_start(
            setting.build,
            width=min(call.sizes["widths"]),
            rates=call.axes["lr"],
            seeds=call.axes["seed"],
            trials=call.options["trials"] or TRIALS,
            data=setting.data,
            batch_size=setting.size,
            **chosen,
        )
        if call.json:
            show.print_json({**asdict(result), "code": result.code})
        else:
            show.console().print(show.coloured(str(result)), soft_wrap=True)
    sys.exit(OK)


def _tune_options(call: Call) -> dict[str, Any]:
    """Return the options of `tune_start`; raise an InputError for options that it does not have."""
    for name in call.axes:
        if name not in ("lr", "seed", "weight_decay"):
            raise InputError(
                f"space: --tune start chooses the settings that it searches; leave out {name}",
                argument="space",
            )
    if len(call.options["rule"]) > 1 or len(call.sizes.get("depths", [0])) > 1:
        raise InputError("tune: expected one rule and one depth", argument="tune")
    chosen = {}
    for name, value in call.options.items():
        if name not in ("sampler", "trials"):
            chosen[name] = value
    if "weight_decay" in call.axes:
        chosen["weight_decay"] = call.axes["weight_decay"][0]
    if "depths" in call.sizes:
        chosen["depths"] = call.sizes["depths"]
    return chosen


def _all_failed(result: "Sweep") -> None:
    """Raise an InputError if every trial failed."""
    errors = [outcome.error for outcome in result.outcomes.values()]
    if errors and None not in errors:
        raise InputError(f"every trial failed; the first: {errors[0]}", "all-trials-failed")
