"""First line of a plan, and notes on sizes and numbers in which base and target differ."""

from collections.abc import Iterable, Sequence

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.planning.adjustments import Draft
from orderone.planning.base import is_configuration, sizes_of
from orderone.planning.comparison import Comparison
from orderone.planning.counterparts import stack_of
from orderone.planning.huggingface import other_numbers
from orderone.planning.param_groups import in_groups
from orderone.planning.plan_row import Row
from orderone.planning.roles.experts import Size


def headline(pair: Comparison, rows: Sequence[Row]) -> str:
    """Return the first line of a plan: the rule, the optimizer, and the sizes that differ."""
    title = f"{pair.request.name} for {pair.request.algorithm.label}"
    count = in_groups(rows)
    depths: list[float] = []
    for counterpart in pair.counterparts.values():
        if counterpart.depth != 1:
            depths.append(counterpart.depth)
    if depths:
        others = [f"depth x{max(depths):.4g}"]
    else:
        others = []
    others += _more_of("rank", pair.ranks)
    others += _more_of("experts", pair.expert_counts)
    others += _more_of("queries per key", pair.query_groups)
    for name, (base, target) in pair.request.horizon.sizes.items():
        if base != target:
            others.append(f"{name} x{target / base:.4g}")
    sizes = sorted(pair.widths.named - pair.ranks_of_adapters_only, key=lambda size: size[0])
    if sizes:
        ratios: set[float] = set()
        widths: list[str] = []
        for base, target in sizes:
            ratios.add(target / base)
            widths.append(f"{base} -> {target}")
        grown = ", ".join(f"x{ratio:.4g}" for ratio in sorted(ratios))
        growth = ", ".join([f"width {grown} ({', '.join(widths)})", *others])
        return f"{title}: {growth}; {count}"
    grown = _grown_sizes(pair, rows)
    if grown:
        return f"{title}: {', '.join([*grown, *others])}; {count}"
    differs = [*others, *sorted(_other_sizes(pair))] or _settings_that_differ(pair)
    if not differs and pair.request.is_uniform:
        return (
            f"{title}: the target equals its base: every factor is 1, and training is"
            f" unchanged; {count}"
        )
    if not differs:
        return f"{title}: the target equals its base: every factor of the rule is 1; {count}"
    differences = " and ".join(differs)
    return f"{title}: no width grows; base and target differ in {differences}; {count}"


def _more_of(word: str, sizes: Iterable[Size]) -> list[str]:
    """Return `rank x8 (4 -> 32)` for the sizes that differ."""
    texts: list[str] = []
    for base, target in sorted(sizes):
        if base != target:
            texts.append(f"{word} x{target / base:.4g} ({base} -> {target})")
    return texts


def _grown_sizes(pair: Comparison, rows: Sequence[Row]) -> list[str]:
    """Return `dimensions x4 (8 -> 32)` where tensors grow although no layer shares a width.

    Examples: an outer product, whose entries are the inputs of a layer.
    """
    if all(row.growth.fan_in == 1 and row.growth.fan_out == 1 for row in rows):
        return []
    sizes: set[Size] = set()
    for evidence in pair.tensors:
        sizes.update(size for size in evidence.sizes if size[0] != size[1])
    texts = [f"x{target / base:.4g} ({base} -> {target})" for base, target in sorted(sizes)]
    return [f"dimensions {', '.join(texts)}"]


def _other_sizes(pair: Comparison) -> set[str]:
    """Return words for the sizes that differ and are not widths."""
    words: set[str] = set()
    for evidence in pair.tensors:
        for size in evidence.sizes:
            if size[0] != size[1] and size not in pair.ranks_of_adapters_only:
                words.add(pair.widths.word_for(size))
    return words


def _settings_that_differ(pair: Comparison) -> list[str]:
    """Return keys of the Hugging Face configurations that differ.

    A number of layers that share their tensors appears nowhere else.
    """
    ours = sizes_of(pair.model) or {}
    theirs = sizes_of(pair.base.module) or {}
    return [key for key in theirs if ours.get(key) != theirs[key]]


def number_notes(pair: Comparison) -> list[str]:
    """Return a note if numbers other than sizes differ between the two configurations."""
    ours = getattr(pair.model, "config", None)
    theirs = getattr(pair.base.module, "config", None)
    if not is_configuration(ours) or not is_configuration(theirs):
        return []
    differing: list[str] = []
    for key in other_numbers(ours, theirs):
        differing.append(f"{key} ({getattr(theirs, key, None)} -> {getattr(ours, key, None)})")
    if not differing:
        return []
    note = (
        f"base and target also differ in {', '.join(differing)}, which the plan ignores; let"
        " them differ only in sizes"
    )
    return [with_code(note, "other-settings-differ")]


def bottleneck_notes(pair: Comparison, drafts: Iterable[Draft]) -> list[str]:
    """Return a note if the output of a readout goes on into the network."""
    stacks: dict[str, None] = {}
    for draft in drafts:
        if draft.resolved.bottleneck and draft.name not in pair.adapters:
            stacks[stack_of(draft.name)] = None
    if not stacks:
        return []
    note = (
        f"{', '.join(stacks)}: treated as a readout, because fan-in grows and fan-out does not."
        " If its fan-out is a width, make it smaller in the base"
    )
    return [with_code(note, "bottleneck-size")]


def input_notes(pair: Comparison, drafts: Iterable[Draft]) -> list[str]:
    """Return a note if a fan-in differs from that of the base and is no width."""
    stacks: dict[str, str] = {}
    for draft in drafts:
        layout = draft.evidence.only_matrix
        is_known = draft.evidence.override is not None or draft.evidence.expert is not None
        if layout is None or is_known or draft.name in pair.adapters:
            continue
        base, target = draft.evidence.together(layout.fan_in)
        if base != target and draft.resolved.growth.fan_in == 1:
            stacks[stack_of(draft.name)] = f"{base} -> {target}"
    if not stacks:
        return []
    sizes = ", ".join(f"{name} ({size})" for name, size in stacks.items())
    example = f'overrides={{"{next(iter(stacks))}": "hidden"}}'
    note = (
        f"{sizes}: the fan-in differs from that of the base, and it is no sum or multiple of"
        " widths. So it counts as a number of input features, and changes no learning rate. If it"
        f" grows with the width, pass {example}, or choose a base in which only widths differ"
    )
    return [with_code(note, "input-size")]


def structure_notes(pair: Comparison, drafts: Iterable[Draft]) -> list[str]:
    """Return a note if settings depend on roles that only sizes and the order of tensors show.

    At base size nothing grows, and without a trace nothing shows what makes the output.
    """
    if pair.facts.shapes or not pair.request.uses_roles:
        return []
    if any(draft.role != Role.FIXED for draft in drafts):
        return []
    note = (
        "roles are guessed: the model is as large as its base, and no forward pass was traced, so"
        " that they follow from sizes and from the order in which tensors are defined. A head that"
        " is defined early, or with as many outputs as an inner width, may count as hidden. Pass an"
        " example batch: plan(..., inputs=...)"
    )
    return [with_code(note, "guessed-roles")]
