"""Colours of rules, the same in all figures; distinct for colour-blind readers too."""

from collections.abc import Sequence

RULE_COLOURS = {
    "mup": "#0072b2",
    "standard": "#d55e00",
    "sp": "#e08a1e",
    "ntk": "#009e73",
    "mf": "#7a4fb5",
    "neural-tangent": "#3fa66b",
    "hybrid": "#c2528b",
    "maximal-update": "#3b82c4",
}
OTHERS = ("#a6761d", "#5c6570", "#8a6fd1", "#9a8b3c")  # custom rules, in turn


def rule_colours(rules: Sequence[str]) -> dict[str, str]:
    """Return the colour of each rule; custom rules get those of `OTHERS` in their order."""
    colours: dict[str, str] = {}
    custom = 0
    for rule in rules:
        if rule in RULE_COLOURS:
            colours[rule] = RULE_COLOURS[rule]
        else:
            colours[rule] = OTHERS[custom % len(OTHERS)]
            custom += 1
    return colours
