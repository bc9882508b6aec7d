"""`orderone plan`: plan a Hugging Face model of any size, without allocating it."""

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from orderone.cli import show
from orderone.cli.files import check_files, wrote

if TYPE_CHECKING:
    from torch import nn


def plan(
    hf_config: str,
    base: tuple[str, ...],
    rule: str = "mup",
    optimizer: str = "adamw",
    lr: float | None = None,
    weight_decay: float | None = None,
    depth: str | None = None,
    decay: str = "independent",
    no_decay: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    override: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    probe: bool = True,
    save: str | None = None,
    json: bool = False,
) -> None:
    """Roles, initial sizes, learning rates, weight decay and eps of every tensor, relative to a
    smaller model.

    Args:
        hf_config: A Hugging Face config.json, or the folder that holds it.
        base: What was tuned: all sizes that were smaller, such as
            hidden_size=256,intermediate_size=1024, num_attention_heads=4; or a saved plan.
        rule: sp, ntk, mup, mf, standard, neural-tangent, hybrid or maximal-update.
        optimizer: sgd, adam, adamw, adafactor, muon, lion, rmsprop, nadam or adagrad.
        lr: The learning rate tuned on the base. Default: that of torch.optim.
        weight_decay: As tuned on the base. Default: that of torch.optim.
        depth: sqrt (residual branches times 1/sqrt(L)) or completep (1/L).
        decay: independent (lr * weight_decay stays) or proportional (weight_decay stays).
        no_decay: A pattern of tensors without weight decay, such as "*.bias"; may be repeated.
        override: PATTERN=ROLE for tensors that you know better; may be repeated.
        probe: The forward pass of two small instances is looked at; --no-probe skips that.
        save: Write the plan to this file.
        json: Print JSON instead of a table.
    """
    from orderone.planning import plan as make_plan
    from orderone.planning.file import as_record

    check_files({"save": save})
    model = meta_model(read_config(hf_config))
    made = make_plan(
        model,
        base=read_base(base),
        rule=rule,
        optimizer=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        depth=depth,
        decay=decay,
        no_decay=no_decay,
        overrides=_pairs(override, "override"),
        probe=probe,
    )
    if save is not None:
        made.save(save)
        wrote(save)
    if json:
        show.print_json(as_record(made))
    else:
        print(made)


def read_config(path: str) -> dict[str, Any]:
    """Read a config.json, or that of a folder."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        config = json_format.loads(file.read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"hf-config: there is no file {file}; give a config.json of Hugging Face"
        ) from error
    except (json_format.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"hf-config: {file} is not JSON ({error})") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(
            f"hf-config: {file} has no model_type; expected a config.json of Hugging Face"
        )
    return config


def meta_model(config: Mapping[str, Any]) -> "nn.Module":
    """Return the model that a configuration describes, without memory."""
    import torch

    try:
        import transformers
    except ImportError as error:
        raise ValueError("this needs transformers; pip install 'orderone[transformers]'") from error
    try:
        hf_config = transformers.AutoConfig.for_model(**config)
    except Exception as error:  # transformers checks the values in many ways
        raise ValueError(
            f"hf-config: transformers {transformers.__version__} cannot read it: {error}"
        ) from error
    architectures = config.get("architectures") or []
    name = architectures[0] if architectures else None
    if name is not None and not hasattr(transformers, name):
        raise ValueError(f"hf-config: transformers {transformers.__version__} has no {name}")
    with torch.device("meta"):
        if name is not None:
            return getattr(transformers, name)(hf_config)
        try:
            return transformers.AutoModelForCausalLM.from_config(hf_config)
        except ValueError:
            return transformers.AutoModel.from_config(hf_config)


def read_base(texts: Sequence[str]) -> dict[str, object] | str:
    """Return overrides from one text or several, or the path of a saved plan."""
    if len(texts) == 1 and "=" not in texts[0]:
        if not Path(texts[0]).is_file():
            raise ValueError(
                "base: expected overrides such as hidden_size=256, or a saved plan; got"
                f" {texts[0]!r}"
            )
        return texts[0]
    return {key: _value(value) for key, value in _pairs(texts, "base").items()}


def _pairs(texts: Sequence[str], name: str) -> dict[str, str]:
    """Read name=value, with commas or blanks between."""
    words = " ".join(texts).replace(",", " ").split()
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{name}: expected name=value, got {word!r}")
        pairs[key] = value
    if len(pairs) < len(words):
        raise ValueError(f"{name}: expected every name once; got {' '.join(words)}")
    return pairs


def _value(text: str) -> object:
    """Read a number, true or false, or plain text."""
    try:
        return json_format.loads(text)
    except json_format.JSONDecodeError:
        return text
