"""`orderone plan`: print the plan of a Hugging Face model of any size, without allocating it."""

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from orderone.cli import show
from orderone.cli.files import check_files, wrote
from orderone.cli.help import Help
from orderone.cli.named_code import check_call, load_builder
from orderone.cli.settings import read_pairs, read_rules, read_setting, read_start
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError
from orderone.core.named_code import load

if TYPE_CHECKING:
    from torch import nn

    from orderone.planning import Plan
    from orderone.sweeping.built_optimizer import BuiltOptimizer
    from orderone.sweeping.job import Built

HELP = Help(
    example=(
        "orderone plan --hf-config config.json --lr 3e-3 --base hidden_size=256"
        " intermediate_size=1024 num_attention_heads=4"
    ),
    groups={
        "Model": ("hf_config", "builder", "size", "base", "data", "override", "probe"),
        "Rule": (
            *("rule", "depth", "expert_rule", "rank_rule", "repetition_rule"),
            *("batch", "tokens", "horizon", "critical_batch", "axis"),
        ),
        "Optimizer": (
            *("optimizer", "lr", "weight_decay", "decay", "no_decay"),
            *("decay_vectors", "init", "init_scale"),
        ),
        "Output": ("save", "json"),
    },
)


def plan(
    hf_config: str | None = None,
    builder: str | None = None,
    size: tuple[str, ...] = (),
    data: str | None = None,
    base: tuple[str, ...] = (),
    rule: str = "mup",
    optimizer: str | None = None,
    lr: str | None = None,
    weight_decay: str | None = None,
    init: str | None = None,
    init_scale: str | None = None,
    depth: str | None = None,
    decay: str = "independent",
    batch: tuple[float, float] | None = None,
    tokens: tuple[float, float] | None = None,
    horizon: str = "sde",
    critical_batch: float | None = None,
    expert_rule: str | None = None,
    rank_rule: str | None = None,
    repetition_rule: str | None = None,
    axis: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    no_decay: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    decay_vectors: bool = True,
    override: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    probe: bool = True,
    save: str | None = None,
    json: bool = False,
) -> None:
    """Print role, initial size, learning rate, weight decay and eps of every tensor of a model,
    relative to a smaller model that you have tuned (the base).

    The weights of a Hugging Face model are never allocated: one of any size can be planned on a
    laptop. Two small instances of it run once, to verify the roles (--no-probe skips this).

    Args:
        hf_config: A config.json of Hugging Face, or the folder that contains it.
        builder: Your model instead of --hf-config: package.module:function, a function of the
            width (and other sizes). The current folder is searched.
        size: The size of the model of --builder: 1024, or names and values such as
            width=1024 depth=12.
        data: Example batches for --builder, to trace the forward pass: package.module:name, as
            for `orderone check`.
        base: The sizes in which the tuned model differs, such as
            hidden_size=256 num_attention_heads=4; for --builder, its size, such as 64 or width=64;
            or a saved plan; or absolute, for power laws of the dimensions themselves. Only
            neural-tangent, hybrid and maximal-update need none.
        rule: sp, ntk, mup, mf, standard, neural-tangent, hybrid or maximal-update.
        optimizer: sgd, adam, adamw, adafactor, muon, lion, rmsprop, nadam or adagrad;
            muon:match_rms_adamw is Muon with the learning-rate factor of that name in torch.
            Default: the one that --builder returns beside the model, otherwise adamw.
        lr: Learning rate tuned on the base; or one for each role or pattern of tensors:
            default=3e-3,embedding=1e-2,*.q_proj.weight=1e-3. Default: the default of torch.optim.
        weight_decay: Weight decay tuned on the base, like --lr. Default: the default of
            torch.optim.
        init: Initial values of the base: keep, fan-in, xavier, orthogonal, zero-readout,
            zero-residual, completep, neural-tangent, hybrid or maximal-update; or one for each role
            or pattern of tensors, which may also be zero or a size:
            default=fan-in,embedding=0.5,readout=zero. Default: the values of the model's own code.
        init_scale: Factor of the base's initial sizes, like --lr. Default: 1.
        depth: Scale residual branches with the number of layers L: sqrt (1/sqrt(L)) or completep
            (1/L). Default: no scaling.
        decay: independent (lr * weight_decay stays constant), proportional (weight_decay stays
            constant), timescale (lr * weight_decay * tokens / batch stays constant), sqrt or
            inverse-width (lr * weight_decay falls with the width).
        batch: Batch sizes of base and target: 64 512.
        tokens: Training tokens of base and target: 2e8 5e9.
        horizon: Rule for --batch and --tokens: sde, power or none.
        critical_batch: Critical batch size; a note says if the batch of the target is larger.
        expert_rule: If the number of experts differs from that of the base: mup, mssp, jiang or
            none (no scaling). Default: mup.
        rank_rule: If the rank of adapters (LoRA) differs from that of the base: mup, mua or none.
            Default: mup.
        repetition_rule: If the number of queries that share a key differs from that of the base:
            mup, gqa-mup or none. Default: mup.
        axis: Base and target of an axis that an installed package provides, as NAME=BASE:TARGET,
            such as context=1024:4096. May be repeated.
        no_decay: Pattern of tensors without weight decay, such as "*.bias". May be repeated.
        decay_vectors: No weight decay on gains, biases and scalars, as in the Trainer of Hugging
            Face.
        override: PATTERN=ROLE, to set the role of tensors yourself. May be repeated.
        probe: Do not run the forward pass of two small instances to verify the roles.
        save: Write the plan to this file.
        json: Print JSON instead of a table.
    """
    from orderone.planning.file import as_record

    check_files({"save": save})
    _require_one_model(hf_config, builder)
    options: dict[str, Any] = {
        "rule": rule,
        "optimizer": optimizer,
        "lr": read_setting(lr, "lr"),
        "weight_decay": read_setting(weight_decay, "weight_decay"),
        "init": read_start(init),
        "init_scale": read_setting(init_scale, "init_scale"),
        "depth": depth,
        "decay": decay,
        "batch": batch,
        "tokens": tokens,
        "horizon": None if horizon.lower() == "none" else horizon,
        "critical_batch": critical_batch,
        "no_decay": no_decay,
        "decay_vectors": decay_vectors,
        "overrides": _pairs(override, "override"),
        "probe": probe,
        "axes": read_pairs(axis) or None,
        **read_rules(expert_rule=expert_rule, rank_rule=rank_rule, repetition_rule=repetition_rule),
    }
    if builder is None:
        assert hf_config is not None  # checked above
        refuse_unused("--hf-config", size=size or None, data=data)
        model = meta_model(read_config(hf_config))
        found_base: Any = read_base(base)
        options["optimizer"] = optimizer or "adamw"
    else:
        model, found_base = _built_models(builder, size, base, data, options)
    made = _made(model, found_base, options, builder)
    if save is not None:
        made.save(save)
        wrote(save)
    if json:
        show.print_json(as_record(made))
    else:
        print(made)


def _require_one_model(hf_config: str | None, builder: str | None) -> None:
    if (hf_config is None) == (builder is None):
        raise InputError(
            "the model: expected --hf-config config.json or --builder package.module:function",
            "needs-another-option",
            argument="builder",
        )


def _made(model: "nn.Module", base: Any, options: dict[str, Any], builder: str | None) -> "Plan":
    """Make the plan; an error about a missing base names options of the command line."""
    from orderone.planning import plan as make_plan

    try:
        return make_plan(model, base=base, **options)
    except InputError as error:
        if error.code == "needs-base" and base is None:
            raise _no_base(options["rule"], builder) from error
        raise


def _no_base(rule: str, builder: str | None) -> InputError:
    """Return the error of a plan without a base, with options of the command line."""
    if builder is None:
        example = "--base hidden_size=256"
    else:
        example = "such as --base 64"
    message = (
        f"--base: {rule} scales settings that you tuned on a smaller model, the base, and no base"
        f" was named. Pass its sizes, {example}, or a saved plan, --base plan.json; or ask for"
        " power laws of the dimensions themselves with --base absolute"
    )
    return InputError(message, "needs-base", argument="base")


def _built_models(
    builder: str,
    size: Sequence[str],
    base: Sequence[str],
    data: str | None,
    options: dict[str, Any],
) -> tuple["nn.Module", Any]:
    """Return the user's model and its base; add settings of the user's optimizer to `options`."""
    from orderone.cli.check import explained
    from orderone.loading.examples import read_examples
    from orderone.observe.batches import call_inputs
    from orderone.planning.build import ABSOLUTE

    if not size:
        raise InputError(
            "--builder needs --size, the size of the model to plan: --size 1024, or"
            " --size width=1024",
            "needs-another-option",
            argument="size",
        )
    large = _call_builder(builder, size, "size")
    if data is not None:
        with explained():
            options["inputs"] = call_inputs(read_examples(load(data, "data"), 1).batches[0])
    tuned = large  # the model that was tuned comes with the optimizer that counts
    base_argument: Any = None
    if base == (ABSOLUTE,) or (len(base) == 1 and Path(base[0]).is_file()):
        base_argument = base[0]
    elif base:
        tuned = _call_builder(builder, base, "base")
        base_argument = tuned.model
    if options["optimizer"] is None:
        _use_optimizer(tuned.optimizer, options)
    return large.model, base_argument


def _call_builder(builder: str, sizes: Sequence[str], option: str) -> "Built":
    """Return what the user's function makes of sizes such as 1024 or width=1024."""
    from orderone.cli.check import explained
    from orderone.sweeping.job import read_built

    build = load_builder(builder)
    numbers = [_value(text) for text in sizes if "=" not in text]
    pairs = _pairs([text for text in sizes if "=" in text], option)
    named = {key: _value(value) for key, value in pairs.items()}
    check_call(build, builder, *numbers, **named)
    with explained():
        return read_built(build(*numbers, **named))


def _use_optimizer(optimizer: "BuiltOptimizer | None", options: dict[str, Any]) -> None:
    """Add the settings of the user's optimizer to `options`; those that were passed stay."""
    if optimizer is None:
        options["optimizer"] = "adamw"
        return
    options["optimizer"] = optimizer.kind
    for name, value in optimizer.tuned.items():
        if options.get(name) is None:
            options[name] = value
    options["no_decay"] = (*options["no_decay"], *optimizer.no_decay)


def read_config(path: str) -> dict[str, Any]:
    """Return the content of a config.json; `path` is the file or its folder."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        config = json_format.loads(file.read_text())
    except FileNotFoundError as error:
        message = f"hf-config: no file {file}; expected a config.json of Hugging Face"
        raise InputError(message, "unusable-hf-config", argument="hf_config") from error
    except (json_format.JSONDecodeError, UnicodeDecodeError) as error:
        message = f"hf-config: {file} is not JSON ({error})"
        raise InputError(message, "unusable-hf-config", argument="hf_config") from error
    if not isinstance(config, dict) or "model_type" not in config:
        message = f"hf-config: {file} has no model_type; expected a config.json of Hugging Face"
        raise InputError(message, "unusable-hf-config", argument="hf_config")
    return config


def meta_model(config: Mapping[str, Any]) -> "nn.Module":
    """Return the model of a configuration on the meta device, which allocates no memory."""
    import torch

    try:
        import transformers
    except ImportError as error:
        message = "orderone plan needs transformers; pip install 'orderone[transformers]'"
        raise InputError(message, "missing-package", argument="hf_config") from error
    try:
        hf_config = transformers.AutoConfig.for_model(**config)
    except Exception as error:  # transformers raises errors of many types
        message = f"hf-config: transformers {transformers.__version__} cannot read it: {error}"
        raise InputError(message, "unusable-hf-config", argument="hf_config") from error
    architectures = config.get("architectures") or []
    if architectures:
        name = architectures[0]
    else:
        name = None
    if name is not None and not hasattr(transformers, name):
        message = f"hf-config: transformers {transformers.__version__} has no class {name}"
        raise InputError(message, "unusable-hf-config", argument="hf_config")
    with torch.device("meta"):
        if name is not None:
            return getattr(transformers, name)(hf_config)
        try:
            return transformers.AutoModelForCausalLM.from_config(hf_config)
        except ValueError:
            return transformers.AutoModel.from_config(hf_config)


def read_base(texts: Sequence[str]) -> dict[str, object] | str | None:
    """Return the sizes of the base from name=value pairs, or the path of a saved plan.

    The result is "absolute" if that was asked for, and None if nothing was.
    """
    from orderone.planning.build import ABSOLUTE

    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        if texts[0] == ABSOLUTE:
            return ABSOLUTE
        if not Path(texts[0]).is_file():
            raise InputError(
                "base: expected sizes such as hidden_size=256, a saved plan, or absolute; got"
                f" {texts[0]!r}",
                argument="base",
            )
        return texts[0]
    return {key: _value(value) for key, value in _pairs(texts, "base").items()}


def _pairs(texts: Sequence[str], name: str) -> dict[str, str]:
    """Return name=value pairs that are separated by commas or blanks."""
    words = " ".join(texts).replace(",", " ").split()
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{name}: expected name=value, got {word!r}", argument=name)
        pairs[key] = value
    if len(pairs) < len(words):
        message = f"{name}: expected every name once; got {' '.join(words)}"
        raise InputError(message, argument=name)
    return pairs


def _value(text: str) -> object:
    """Return a number, a bool, or the text itself."""
    try:
        return json_format.loads(text)
    except json_format.JSONDecodeError:
        return text
