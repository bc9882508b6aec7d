"""Small instances of a Hugging Face model, from its configuration alone, and example batches.

They have few layers and a small vocabulary, which do not matter for the width. The widths are the
sizes in which target and base differ.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orderone.observe.inventory import shapes_of
from orderone.planning.base import Configuration, built, is_configuration, is_sizes
from orderone.planning.counterparts import stack_of
from orderone.planning.initial_sizes import parameter_count
from orderone.planning.roles.vocabulary import EXPERT, OTHER_SIZES, TOKEN_KEYS

LAYERS = 2
MOST_LAYERS = 10
VOCABULARY = 512
BATCH = (4, 16)
WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size")
NARROWEST = 32  # a few heads
GROWTH = 4.0  # from the narrow to the wide instance
LARGEST = 40_000_000  # parameters of an instance; more would only cost memory


def small_pair(
    model: nn.Module, ours: Configuration, theirs: Configuration
) -> tuple[Configuration, Configuration]:
    """Return configurations of two instances: a small base, and the same four times as wide."""
    widths = _width_keys(ours.to_dict(), theirs.to_dict())
    small = _narrowed(model, few_layers(model, theirs), widths)
    return small, _scaled(small, widths, GROWTH)


def routing_pair(
    model: nn.Module, ours: Configuration, theirs: Configuration
) -> tuple[Configuration, Configuration] | None:
    """Return small configurations with the experts of the base and of the target.

    Return None if the two agree in everything but widths and depth.
    """
    widths = _width_keys(ours.to_dict(), theirs.to_dict())
    base = few_layers(model, theirs)
    target = few_layers(model, with_widths_of(ours, theirs))
    if base.to_dict() == target.to_dict():
        return None
    narrow = widths or [key for key in WIDTHS if type(getattr(ours, key, None)) is int]
    return _narrowed(model, base, narrow), _narrowed(model, target, narrow)


def proportional_to(model: nn.Module, ours: Configuration, theirs: Configuration) -> Configuration:
    """Return the configuration of a small copy of the target.

    If the copy does not run either, the sizes of the base are not to blame.
    """
    return _narrowed(model, few_layers(model, ours), _width_keys(ours.to_dict(), theirs.to_dict()))


def with_widths_of(ours: Configuration, theirs: Configuration) -> Configuration:
    """Return our configuration with the widths of theirs: the depth is ours."""
    result = copy.deepcopy(ours)
    for key in _width_keys(ours.to_dict(), theirs.to_dict()):
        *path, last = key.split(".")
        part = result
        other = theirs
        for name in path:
            part = getattr(part, name)
            other = getattr(other, name)
        setattr(part, last, getattr(other, last))
    return result


def few_layers(model: nn.Module, config: Configuration) -> Configuration:
    """Return the configuration with as few layers as contain every kind of tensor of the model.

    Experts may begin at the fourth layer.
    """
    kinds = _stacks_of(model)
    for layers in range(LAYERS, MOST_LAYERS):
        small = _shrunk(config, layers)
        if _stacks_of(built(model, small, device="meta")) >= kinds:
            return small
    return _shrunk(config, LAYERS)


def _stacks_of(model: nn.Module) -> set[str]:
    return {stack_of(name) for name in shapes_of(model)}


def other_numbers(ours: Configuration, theirs: Configuration) -> list[str]:
    """Return keys of floats that differ between target and base: perhaps multipliers."""
    our_values = ours.to_dict()
    keys: list[str] = []
    for key, value in theirs.to_dict().items():
        if type(value) is float and our_values.get(key) != value:
            keys.append(key)
    return keys


def head_growth(ours: Configuration, theirs: Configuration) -> float | None:
    """Return the ratio of head sizes, target over base; None if parts of the model disagree."""
    ratios: set[float] = set()
    for our_part, their_part in zip(parts(ours), parts(theirs), strict=True):
        our_size = head_size(our_part)
        their_size = head_size(their_part)
        if our_size and their_size:
            ratios.add(our_size / their_size)
    if len(ratios) == 1:
        return ratios.pop()
    if ratios:
        return None
    return 1.0


def head_size(config: Configuration) -> int | None:
    """Return the size of an attention head; None if the configuration has none."""
    for name in ("qk_head_dim", "head_dim", "d_kv"):
        if hasattr(config, name):
            size = getattr(config, name, None)
            if isinstance(size, int):
                return size
            break
    hidden = getattr(config, "hidden_size", None)
    heads = getattr(config, "num_attention_heads", None)
    if isinstance(hidden, int) and isinstance(heads, int) and heads:
        return hidden // heads
    return None


def parts(config: Configuration) -> list[Configuration]:
    """Return the configuration and those nested in it (text_config, vision_config)."""
    result = [config]
    for key in config.to_dict():
        part = getattr(config, key, None)
        if is_configuration(part):
            result.append(part)
    return result


def width_of(config: Configuration) -> str:
    """Return the hidden size in words."""
    for part in parts(config):
        size = getattr(part, "hidden_size", None) or getattr(part, "hidden_sizes", None)
        if size:
            return str(size)
    return "?"


def _narrowed(model: nn.Module, config: Configuration, widths: list[str]) -> Configuration:
    """Halve the widths until the wide instance is small; odd widths stay."""
    while widths and numel(model, _scaled(config, widths, GROWTH)) > LARGEST:
        even = [key for key in widths if _get(config, key) % 2 == 0]
        halved = _scaled(config, even, 0.5)
        if not even or _get(halved, even[0]) < NARROWEST:
            break
        config = halved
    return config


def _width_keys(ours: Mapping[Any, Any], theirs: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """Return keys of widths: whole numbers, and lists of them, that differ between the two."""
    keys: list[str] = []
    for key, value in theirs.items():
        other = ours.get(key)
        if not _is_width_key(key) or value == other:
            continue
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            keys += _width_keys(other, value, f"{prefix}{key}.")
        elif is_sizes(value) and is_sizes(other):
            keys.append(prefix + key)
    return keys


def _is_width_key(key: str) -> bool:
    """Return whether a size with this key can be a width.

    A number of experts is none; the size of an expert is one: shared_expert_intermediate_size.
    """
    others = OTHER_SIZES
    if EXPERT in key and key.endswith(("_size", "_dim", "_dims")):
        others = tuple(word for word in OTHER_SIZES if word != EXPERT)
    return not any(word in key for word in others)


def _shrunk(config: Configuration, layers: int) -> Configuration:
    """Return the configuration with fewer layers and a smaller vocabulary."""
    result = copy.deepcopy(config)
    for part in parts(result):
        for key, value in part.to_dict().items():
            if type(value) is not int:
                continue
            if key.endswith(("layers", "_layer")) and not key.startswith("max"):
                _set(part, key, min(value, layers))
            elif key == "vocab_size":
                _set(part, key, min(value, VOCABULARY))
        for key, value in part.to_dict().items():
            if key.endswith(TOKEN_KEYS) and type(value) is int and value >= VOCABULARY:
                _set(part, key, 0)
        _set(part, "use_cache", False)
        kinds = vars(part).get("layer_types")  # some configurations store it, others derive it
        if isinstance(kinds, list):
            part.layer_types = kinds[: part.num_hidden_layers]
    return result


def _set(part: Configuration, key: str, value: object) -> None:
    if getattr(part, key, value) != value:
        setattr(part, key, value)


def _scaled(config: Configuration, keys: list[str], by: float) -> Configuration:
    result = copy.deepcopy(config)
    for key in keys:
        *path, last = key.split(".")
        part = result
        for name in path:
            part = getattr(part, name)
        setattr(part, last, _times(getattr(part, last), by))
    return result


def _times(value: int | list[int] | tuple[int, ...], by: float) -> int | list[int]:
    if isinstance(value, (list, tuple)):
        return [int(x * by) for x in value]
    return int(value * by)


def _get(config: Configuration, key: str) -> int:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    if isinstance(value, int):
        return value
    return math.gcd(*value)


def numel(model: nn.Module, config: Configuration) -> int:
    """Return the number of parameters of a model with this configuration."""
    return parameter_count(built(model, config, device="meta"))


def examples(model: nn.Module, config: Configuration) -> Iterator[dict[str, Tensor]]:
    """Yield small random batches: first with all inputs that the model may read, then text only."""
    generator = torch.Generator().manual_seed(0)
    batch = dict(_inputs(getattr(model, "main_input_name", "input_ids"), config, generator))
    yield batch
    if {"input_ids", "pixel_values"} <= set(batch):
        text = dict(batch)
        del text["pixel_values"]
        yield text


def _inputs(
    name: str, config: Configuration, generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    text = _first(config, ("text_config", "decoder"))
    vision = _first(config, ("vision_config", "encoder"))
    if (name == "input_ids" or hasattr(config, "text_config")) and hasattr(text, "vocab_size"):
        yield "input_ids", _tokens(text, generator)
    if name == "pixel_values" or hasattr(config, "vision_config"):
        size = getattr(vision, "image_size", 32)
        if isinstance(size, int):
            size = (size, size)
        high, wide = size
        channels = getattr(vision, "num_channels", 3)
        images = torch.randn(BATCH[0], channels, high, wide, generator=generator)
        yield "pixel_values", images
    if name == "input_features":
        length = 2 * config.max_source_positions
        yield name, torch.randn(BATCH[0], config.num_mel_bins, length, generator=generator)
    if name == "input_values":
        yield name, torch.randn(BATCH[0], 4000, generator=generator)
    if getattr(config, "is_encoder_decoder", False):
        yield "decoder_input_ids", _tokens(text, generator)


def _first(config: Configuration, names: Iterable[str]) -> Configuration:
    """Return the first of these nested configurations that exists, else the configuration."""
    for name in names:
        part = getattr(config, name, None)
        if is_configuration(part):
            return part
    return config


def _tokens(config: Configuration, generator: torch.Generator) -> Tensor:
    context = getattr(config, "max_position_embeddings", None)
    if isinstance(context, int) and context > 0:
        length = min(BATCH[1], context)
    else:
        length = BATCH[1]
    return torch.randint(
        3, min(VOCABULARY, config.vocab_size), (BATCH[0], length), generator=generator
    )
