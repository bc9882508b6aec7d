"""Absolute mode (base=None): the papers' power laws in the dimensions themselves, with order-one constants C and Lambda.

    initial std  sqrt(C_G) times the rule's power;    learning rate  lr Lambda_G times the rule's power

A tensor starts as the law says if it is a matrix or a lookup; biases and gains keep the constants the model gives
them. For the strategies of S2 the powers are those of its groups (`theory.scaling`); for the others they are the
exponents of S0, with fan_in^-1/2 for a dense embedding, whose input is not one-hot. C and Lambda may name a role, a group
of S2, or one matrix of its group QKVU. A readout that is the embedding stands behind a multiplier: N_rescale, S2 (1.24).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from orderone.core.errors import one_of
from orderone.planning import optimizers
from orderone.planning.commit import sizes_now
from orderone.planning.groups import fans, group_of
from orderone.planning.growth import Tensor
from orderone.planning.initial import Initial, measure
from orderone.planning.inventory import Item, Place, inventory, unwrap
from orderone.planning.layouts import Layout, lookup
from orderone.planning.names import is_table, part_of_attention
from orderone.planning.optimizers import ALGORITHMS, REST, Algorithm
from orderone.planning.plan import Multiplier, Plan, Row
from orderone.planning.request import Request, nonnegative
from orderone.planning.roles import FIXED, OVERRIDES, read_overrides
from orderone.planning.sight import output_modules
from orderone.planning.structure import structural_roles
from orderone.rules.factors import Factors, Growth, tied_multiplier, width_factors
from orderone.theory.exponents import ROLES
from orderone.theory.scaling import GROUPS, group_rate, is_strategy

ATTENTION = ("Q", "K", "V", "U")  # within the group QKVU


def plan(model: nn.Module, request: Request, C: Mapping[str, float], Lambda: Mapping[str, float]) -> Plan:
    if request.gauge != "folded" or request.depth is not None:
        raise ValueError("base=None: gauge and depth are relative to a base; give one, or leave them out")
    items = inventory(model)
    tensors = [Tensor(item, item.shape, _layouts(item)) for item in items.values()]
    found = structural_roles(tensors, output_modules(model)) | read_overrides(request.overrides, list(items))
    _no_unknown(tensors, request)
    groups = _groups(tensors, found)
    for constants, name in ((C, "C"), (Lambda, "Lambda")):
        _read_constants(constants, name, groups)
    rows = tuple(_row(t, found[t.item.name], groups[t.item.name], request, C, Lambda) for t in tensors)
    headline = (
        f"{request.name} for {request.algorithm.name}, absolute: powers of each tensor's own dimensions; {len(rows)} "
        f"tensors in {len({(r.optimizer, r.lr, r.weight_decay, r.eps) for r in rows})} groups"
    )
    return Plan(
        settings=request.settings(relative=False),
        rows=rows,
        headline=headline,
        multipliers=_tied_readouts(tensors, rows),
        looked="probe: not run in absolute mode",
        model=unwrap(model),
        planned=sizes_now({name: item.tensor for name, item in items.items()}),
    )


def _layouts(item: Item) -> tuple[Layout, ...]:
    """What the owners tell; a table that a model owns itself is known by its name, and its rows are the last axis."""
    owned = tuple(dict.fromkeys(place.layout for place in item.places if place.layout))
    long = [axis for axis, size in enumerate(item.shape) if size > 1]
    if not owned and len(long) == 2 and long[-1] == len(item.shape) - 1 and is_table(item.name):
        return (lookup(*long),)
    return owned


def _groups(tensors: Sequence[Tensor], found: Mapping[str, str]) -> dict[str, str]:
    """The group of every tensor; what a readout adds is its bias."""
    heads = {place.module for t in tensors for place in _outputs(t, found[t.item.name])}
    return {
        t.item.name: "head_bias"
        if found[t.item.name] == "vector" and any(place.module in heads for place in t.item.places)
        else group_of(t, found[t.item.name])
        for t in tensors
    }


def _outputs(t: Tensor, role: str) -> list[Place]:
    """Where the tensor is the readout: everywhere, or as a tied one in modules that multiply with it."""
    multiplies = [place for place in t.item.places if place.layout and place.layout.kind == "matrix"]
    return multiplies if role == "readout" or len({layout.kind for layout in t.layouts}) > 1 else []


def _read_constants(constants: Mapping[str, float], name: str, groups: Mapping[str, str]) -> None:
    words = (*GROUPS, *ROLES, FIXED, *ATTENTION)
    for key in constants:
        if key not in words:
            one_of(key, words, f"group in {name}")
        nonnegative(constants[key], f"{name}[{key}]")
    unclear = [t for t, group in groups.items() if group == "QKVU" and part_of_attention(t) is None]
    if unclear and any(key in ATTENTION for key in constants):
        raise ValueError(
            f"{name}: expected QKVU, because {unclear[0]} is not one of queries, keys, values and outputs by its name; "
            f"got {', '.join(constants)}"
        )


def _constant(constants: Mapping[str, float], name: str, group: str, role: str) -> float:
    part = part_of_attention(name) if group == "QKVU" else None
    return next((constants[key] for key in (part, group, role) if key in constants), 1.0)


def _no_unknown(tensors: list[Tensor], request: Request) -> None:
    settled = read_overrides(request.overrides, [t.item.name for t in tensors])
    for t in tensors:
        if not t.layouts and sum(size > 1 for size in t.item.shape) > 1 and t.item.name not in settled:
            raise ValueError(
                f"{t.item.name} {t.item.shape} in {t.item.places[0].owner}: without a base, it is not known which "
                "dimension is summed over. "
                f'Say what it is: plan(..., overrides={{"{t.item.name}": one of {", ".join(OVERRIDES)}}}), or '
                "register its module type"
            )


def _row(
    t: Tensor, role: str, group: str, request: Request, C: Mapping[str, float], Lambda: Mapping[str, float]
) -> Row:
    a, item = _algorithm(t, role, request), t.item
    initial = None if item.tensor.is_meta else measure(item.tensor)
    f = Factors() if role == FIXED else _factors(t, role, group, request, a)
    drawn = role not in ("vector", FIXED) and not (initial and initial.constant is not None)
    rate, variance = (_constant(constants, item.name, group, role) for constants in (Lambda, C))
    std = variance**0.5 * f.std if drawn else (initial or Initial(0.0, 0.0)).rms
    tied = bool(_outputs(t, role)) and role != "readout"
    multiplier = tied_multiplier(request.parameterization(a.law), float(fans(t)[1]), a.law) if tied else 1.0
    reason = f"{group}: {_law(t, role)}" + (f"; as a readout times {multiplier:.4g}" if tied else "")
    return Row(
        name=item.name,
        role=role,
        group=group,
        shape=item.shape,
        base_shape=None,
        growth=Growth(),
        depth=1.0,
        multiplier=multiplier,
        init_std=std,
        lr=request.lr_of(a) * rate * f.lr,
        weight_decay=optimizers.weight_decay(
            request.weight_decay_of(a, item.name), replace(f, lr=rate * f.lr), a, request.decay
        ),
        eps=optimizers.eps(a, request.eps_of(a), f, t),
        reason=reason + ("" if drawn else "; starts as the model has it"),
        optimizer=a.name,
        uses=tuple(place.module for place in item.places),
        constant=None if drawn else (initial or Initial(0.0, 0.0)).constant,
        base_name=None,
        base_std=None,
        factors=f,
    )


def _tied_readouts(tensors: Sequence[Tensor], rows: Sequence[Row]) -> tuple[Multiplier, ...]:
    return tuple(
        Multiplier(place.module, row.multiplier, "input", "the readout is the embedding")
        for t, row in zip(tensors, rows, strict=True)
        for place in _outputs(t, row.role)
        if row.multiplier != 1
    )


def _law(t: Tensor, role: str) -> str:
    into, out = fans(t)
    return f"fan-in {into}, fan-out {out}" if role in ("hidden", "readout") or into > 1 else f"width {out}"


def _algorithm(t: Tensor, role: str, request: Request) -> Algorithm:
    muon_leaves_it = request.algorithm.name == "muon" and not (role == "hidden" and len(t.item.shape) == 2)
    return ALGORITHMS[REST] if muon_leaves_it else request.algorithm


def _factors(t: Tensor, role: str, group: str, request: Request, a: Algorithm) -> Factors:
    into, out = fans(t)
    folded = width_factors(request.parameterization(a.law), role, Growth(into, out), a.law)
    if group == "head_bias":  # the number of outputs is no width
        folded = Factors()
    if group == "patch":  # a dense input is a sum over its features
        folded = replace(folded, std=folded.std * into**-0.5)
    if is_strategy(request.name) and a.law in ("adamw", "adam", "sign", "sgd"):
        s2 = group if group in GROUPS else "PE"
        folded = replace(folded, lr=group_rate(request.name, s2, into, out, a.law))
    return folded
