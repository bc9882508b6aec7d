"""Absolute mode (base=None): the papers' power laws in the dimensions themselves, with order-one constants C and Lambda.

    initial std  sqrt(C_G) times the rule's power;    learning rate  lr Lambda_G times the rule's power

A tensor starts as the law says if it is a matrix or a lookup; biases and gains keep the constants the model gives
them. For the strategies of S2 the powers are those of its groups (`theory.scaling`); for the others they are the
exponents of S0, with fan_in^-1/2 for a dense embedding, whose input is not one-hot.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from orderone.core.errors import one_of
from orderone.planning import optimizers
from orderone.planning.commit import sizes_now
from orderone.planning.groups import fans, group_of
from orderone.planning.growth import Tensor
from orderone.planning.initial import Initial, measure
from orderone.planning.inventory import inventory, unwrap
from orderone.planning.optimizers import ALGORITHMS, REST, Algorithm
from orderone.planning.plan import Plan, Row
from orderone.planning.request import Request, nonnegative
from orderone.planning.roles import FIXED, OVERRIDES, read_overrides
from orderone.planning.sight import output_modules
from orderone.planning.structure import structural_roles
from orderone.rules.factors import Factors, Growth, width_factors
from orderone.theory.exponents import ROLES
from orderone.theory.scaling import GROUPS, STRATEGIES, group_rate


def plan(model: nn.Module, request: Request, C: Mapping[str, float], Lambda: Mapping[str, float]) -> Plan:
    if request.gauge != "folded" or request.depth is not None:
        raise ValueError("base=None: gauge and depth are relative to a base; give one, or leave them out")
    words = (*GROUPS, *ROLES, FIXED)
    for constants, name in ((C, "C"), (Lambda, "Lambda")):
        for key in constants:
            if key not in words:
                one_of(key, words, f"group in {name}")
            nonnegative(constants[key], f"{name}[{key}]")
    items = inventory(model)
    tensors = [Tensor(i, i.shape, tuple(dict.fromkeys(p.layout for p in i.places if p.layout))) for i in items.values()]
    found = structural_roles(tensors, output_modules(model)) | read_overrides(request.overrides, list(items))
    _no_unknown(tensors, request)
    rows = tuple(_row(t, found[t.item.name], request, C, Lambda) for t in tensors)
    planned = sizes_now({name: item.tensor for name, item in items.items()})
    headline = (
        f"{request.name} for {request.algorithm.name}, absolute: powers of each tensor's own dimensions; {len(rows)} "
        f"tensors in {len({(r.optimizer, r.lr, r.weight_decay, r.eps) for r in rows})} groups"
    )
    looked = "probe: not run in absolute mode"
    return Plan(request.settings(relative=False), rows, headline, looked=looked, model=unwrap(model), planned=planned)


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


def _row(t: Tensor, role: str, request: Request, C: Mapping[str, float], Lambda: Mapping[str, float]) -> Row:
    a, item = _algorithm(t, role, request), t.item
    group = group_of(t, role)
    initial = None if item.tensor.is_meta else measure(item.tensor)
    f = Factors() if role == FIXED else _factors(t, role, group, request, a)
    drawn = role not in ("vector", FIXED) and not (initial and initial.constant is not None)
    rate = Lambda.get(group, Lambda.get(role, 1.0))
    variance = C.get(group, C.get(role, 1.0))
    std = variance**0.5 * f.std if drawn else (initial or Initial(0.0, 0.0)).rms
    return Row(
        name=item.name,
        role=role,
        group=group,
        shape=item.shape,
        base_shape=None,
        growth=Growth(),
        depth=1.0,
        multiplier=1.0,
        init_std=std,
        lr=request.lr_of(a) * rate * f.lr,
        weight_decay=optimizers.weight_decay(
            request.weight_decay_of(a, item.name), replace(f, lr=rate * f.lr), a, request.decay
        ),
        eps=optimizers.eps(a, request.eps_of(a), f, t),
        reason=f"{group}: {_law(t, role)}" + ("" if drawn else "; starts as the model has it"),
        optimizer=a.name,
        uses=tuple(place.module for place in item.places),
        constant=None if drawn else (initial or Initial(0.0, 0.0)).constant,
        base_name=None,
        base_std=None,
        factors=f,
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
    if group == "patch":  # a dense input is a sum over its features
        folded = replace(folded, std=folded.std * into**-0.5)
    if request.name in STRATEGIES and a.law in ("adamw", "adam", "sign", "sgd"):
        s2 = group if group in GROUPS else "PE"
        folded = replace(folded, lr=group_rate(request.name, s2, into, out, a.law))
    return folded
