"""Does the best learning rate stay as the number of experts grows from 8 to 64?

    python -m studies.experts.run [--minutes M]
    python -m studies.experts.run --report

PROTOCOL.md has the question, the sizes and what would refute us. A piece is one rule and number of
experts with all its rates and seeds.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import pandas
import torch
import transformers
from torch import nn

from orderone.data import Language, language
from studies.llama import VOCAB
from studies.pieces import Piece, Records, run_study
from studies.tables import header, line, transfer_cells

FOLDER = Path(__file__).parent
RULES = {"mup": "mup", "none": None}  # name in the records -> expert_rule


@dataclass(frozen=True)
class Scale:
    """Sizes and grids of the study."""

    width: int = 128
    layers: int = 2
    head: int = 64
    experts: tuple[int, ...] = (8, 16, 32, 64)
    active: int = 2
    batch: int = 16
    length: int = 128
    steps: int = 300
    rates: int = 8
    seeds: int = 2


FULL = Scale()
TINY = Scale(32, 1, 16, (4, 8), batch=2, length=16, steps=4, rates=2)
FIRST_RATE = -12  # power of 2
SECONDS = (40.0, 50.0, 70.0, 110.0)  # one H200, by the number of experts


def olmoe(width: int, *, experts: int, scale: Scale, device: str) -> nn.Module:
    """Return an unmodified OLMoE, whose router does not normalize the weights of its experts."""
    config = transformers.OlmoeConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=scale.layers,
        num_attention_heads=width // scale.head,
        num_key_value_heads=width // scale.head,
        num_experts=experts,
        num_experts_per_tok=scale.active,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    with torch.device(device):
        return transformers.OlmoeForCausalLM(config)


@lru_cache(maxsize=1)
def _text(scale: Scale, device: str) -> Language:
    return language(batch=scale.batch, length=scale.length, format="huggingface", device=device)


def all_pieces(scale: Scale, device: str) -> list[Piece]:
    """Return the pieces; the base is the same for both rules."""
    pieces = [_piece(scale, device, "mup", 0)]
    for rule in RULES:
        for place in range(1, len(scale.experts)):
            pieces.append(_piece(scale, device, rule, place))
    return pieces


def _piece(scale: Scale, device: str, rule: str, place: int) -> Piece:
    build = partial(olmoe, scale=scale, device=device)
    experts = scale.experts[place]
    options: dict[str, Any] = {
        "widths": [scale.width],
        "base": olmoe(scale.width, experts=scale.experts[0], scale=scale, device="meta"),
        "rule": "mup",
        "expert_rule": RULES[rule],
        "optimizer": "adamw",
        "init": "fan-in",
        "weight_decay": 0.0,
        "steps": scale.steps,
        "schedule": "cosine",
        "warmup": max(1, scale.steps // 10),
        "clip": 1.0,
        "precision": "bfloat16" if device.startswith("cuda") else "float32",
        "compile": False,
    }
    return Piece(
        name=f"{rule if place else 'base'}-{experts}",
        build=partial(build, experts=experts),
        space={
            "lr": [2.0 ** (FIRST_RATE + k) for k in range(scale.rates)],
            "seed": range(scale.seeds),
        },
        data=partial(_text, scale, device),
        seconds=SECONDS[place],
        options=options,
        labels={"experts": experts, "expert_rule": rule if place else "base"},
    )


def report(records: Records) -> None:
    """Print drift, verdict and losses of both rules."""
    frame = records.rows()
    print(header("rule", "experts"))
    for rule in RULES:
        rows = cast(pandas.DataFrame, frame[frame["expert_rule"].isin(["base", rule])])
        if len(set(rows["experts"])) > 1:
            print(line([rule, *transfer_cells(rows, "experts")]))


def main(arguments: list[str] | None = None) -> int:
    """Run the study of the command line."""
    return run_study(
        FOLDER,
        __doc__,
        report,
        lambda tiny, device: list(all_pieces(TINY if tiny else FULL, device)),
        arguments,
    )


if __name__ == "__main__":
    raise SystemExit(main())
