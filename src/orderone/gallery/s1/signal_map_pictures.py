"""Figures of the records of `signal_maps`: a panel for each network of S1 Figure 1, and one for
networks without dropout."""

from orderone.gallery.experiment import Picture, Records
from orderone.gallery.figures import Figure, Trace
from orderone.gallery.frames import Frame, Row
from orderone.gallery.s1.dropout_pictures import KEEP, NEUTRAL, SERIES, dots, layout, line, shade
from orderone.gallery.s1.signal_maps import CHAOTIC, PANELS


def draw(records: Records) -> list[Picture]:
    return [
        *(_picture(name, _of(records, [name])) for name in PANELS),
        _chaotic(_of(records, list(CHAOTIC))),
    ]


def _of(records: Records, panels: list[str]) -> dict[str, Frame]:
    return {part: frame[frame.panel.isin(panels)] for part, frame in records.items()}


def _picture(name: str, records: dict[str, Frame]) -> Picture:
    panel = PANELS[name]
    data = [_unity(panel.largest)]
    for point in records["fixed points"].itertuples():
        data += _curve(records, name, point, f"ρ = {point.keep:g}", KEEP[point.keep])
    ends = ", ".join(
        f"{_at(point, panel.of)} at ρ = {point.keep:g}"
        for point in records["fixed points"].itertuples()
    )
    if panel.of == "q":
        symbol = "q<sub>aa</sub>"
    else:
        symbol = "c<sub>ab</sub>"
    title = (
        f"({name}) {panel.activation}: σ_w = {panel.weight_var**0.5:g}, σ_b ="
        f" {panel.bias_var**0.5:g}"
    )
    alt = (
        "Theory curves for three keep rates with simulated dots on them; they cross the unity line"
        f" at {ends}."
    )
    caption = (
        "Lines: theory. Dots: networks, with standard errors; shades: one standard deviation over"
        " networks. Diamonds: the last layers of deep networks. ρ is the keep rate."
    )
    figure: Figure = {
        "data": data,
        "layout": layout(f"{symbol}<sup>l−1</sup>", f"{symbol}<sup>l</sup>"),
    }
    return Picture(title, figure, alt, caption)


def _chaotic(records: dict[str, Frame]) -> Picture:
    data = [_unity(1.0)]
    for colour, point in zip(SERIES[3:], records["fixed points"].itertuples(), strict=False):
        panel = CHAOTIC[point.panel]
        label = f"{panel.activation}, σ_w² = {panel.weight_var:g}, σ_b² = {panel.bias_var:g}"
        data += _curve(records, point.panel, point, label, colour)
    ends = " and ".join(f"{e.c:.3f} ({e.activation})" for e in records["fixed points"].itertuples())
    alt = (
        f"Correlation maps of two networks without dropout cross the unity line at {ends}, below 1."
    )
    figure: Figure = {
        "data": data,
        "layout": layout("c<sub>ab</sub><sup>l−1</sup>", "c<sub>ab</sub><sup>l</sup>"),
    }
    caption = "Not in the paper: in the chaotic phase c* is below 1 without dropout (erratum S1.1)."
    return Picture("(e) Two networks without dropout, ρ = 1", figure, alt, caption)


def _unity(end: float) -> Trace:
    return line([0, end], [0, end], "unity", NEUTRAL, "dash")


def _curve(
    records: dict[str, Frame], name: str, point: Row, label: str, colour: str
) -> list[Trace]:
    """Draw theory, dots with a band, and the fixed point, with one entry in the legend."""
    theory, maps = (
        f[(f.panel == name) & (f.keep == point.keep)] for f in (records["theory"], records["maps"])
    )
    group = {"legendgroup": label, "showlegend": False}
    return [
        shade(
            maps.x, maps["mean"] - maps["std"], maps["mean"] + maps["std"], label, colour, **group
        ),
        line(theory.x, theory.y, label, colour, legendgroup=label),
        dots(maps.x, maps["mean"], f"{label}, networks", colour, maps.se, **group),
        *_fixed_point(point, (PANELS | CHAOTIC)[name].of, label, colour, group),
    ]


def _fixed_point(point: Row, of: str, label: str, colour: str, group: Trace) -> list[Trace]:
    if of == "q" and point.status == "diverges":
        return []
    if of == "q":
        value, se = (point.q, point.q_se)
    else:
        value, se = (point.c, point.c_se)
    marker = {"symbol": "diamond-open", "size": 13, "line": {"width": 2}}
    return [dots([value], [value], f"{label}, fixed point", colour, [se], marker=marker, **group)]


def _at(point: Row, of: str) -> str:
    if of == "q":
        return f"{point.q:.3g}"
    return f"{point.c:.3f}"
