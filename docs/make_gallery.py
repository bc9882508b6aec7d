"""Write docs/gallery/ from the shipped results: `python docs/make_gallery.py`; `--text` writes no
pictures, and names of experiments draw only theirs.

plotly draws the pictures in headless Chromium, as in a report.
"""

import io
import json
import re
import sys
from base64 import b64decode
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from orderone.gallery import EXPERIMENTS, Grid, Picture, Reproduced
from orderone.gallery.choose import choose
from orderone.gallery.experiment import SOURCES
from orderone.gallery.store import SHIPPED

if TYPE_CHECKING:
    import plotly.graph_objects as go

HERE = Path(__file__).parent / "gallery"
PAPERS = {
    "S0": "Scale-Invariant Parameterizations",
    "S1": "Mean field theory for deep dropout networks",
    "S2": "Effective Theory of Transformers at Initialization",
    "S3": "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks",
}
WORDS = {True: "holds", False: "does not hold", None: "unclear"}
INTRODUCTION = """\
# Gallery

For those who want to know which claims of the four papers hold on real networks. After this page \
you know the main findings,
and where each table and figure is repeated. `orderone reproduce NAME` \
runs one experiment,
`make reproduce-small` runs all of them, and `orderone report --html gallery.html` makes one \
interactive page of the
shipped results.

The papers have short names: S0 is *{S0}*, S1 *{S1}*,
S2 *{S2}*, and
S3 *{S3}*.

The column *the paper* judges the claims as printed; *as corrected* judges the corrected claims \
of the [errata](../errata.md).
*Holds, some undecided* means that these records cannot decide some claims, and all others hold.

The main findings:

* [Trainable depth](s1.md#s1-figure7) follows the smaller of the two depth scales, as S1 claims. \
The factor 12 is not a
  constant: it grows with the length of training.
* The [gradient metric of two inputs](s1.md#s1-figure2) follows the theory that S1 considers \
refuted, if it is averaged
  with its sign; S1 measured the noise of finite width instead.
* The [logits of standard networks](s0.md#s0-logits) grow with the width in training, while S0 \
says that they do not; those
  of muP do not grow.
* [Vision Transformers](s2.md#s2-figure2) are better under the neural-tangent strategy than under \
the standard one, as S2
  claims, at a size thirty times smaller and after 12 epochs. The claims of S2 about 300 epochs \
and 200,000 updates are
  unclear here: these trainings are shorter.

| experiment | title | the paper | as corrected | scale |
| --- | --- | --- | --- | --- |"""
PAGE = """\
For those who read the paper, or use its formulas. After this page you know which of its claims \
hold on the networks that we
trained, with the measurements. [All papers, and how to repeat this](index.md).

{symbols}"""
SYMBOLS = {
    "S0": """\
**Symbols.** n is the width. A tensor has the multiplier n^-a, the initial standard deviation \
n^-b and the learning rate n^-c.
SP, NTK, muP and MF are four choices of these exponents. h is an activation, a prime marks a \
gradient, and Δ the change in one
step. ω, α and u are the alignments of W Δh, ΔW h and ΔW Δh: 1/2 if the terms of the product have \
independent signs, 1 if the
signs are equal ([exponents](../exponents.md)).""",
    "S1": """\
**Symbols.** N is the width, L the number of layers, and l a layer. σ_w² and σ_b² are the \
variances of weights (times the fan-in)
and of biases. ρ is the *keep* rate, 1 minus the dropout rate. q is the length (mean square) of a \
signal, and c the correlation of
the signals of two inputs a and b; q\\* and c\\* are their limits in deep networks. g_aa is the \
mean squared gradient of a layer's
weights for one input, and g_ab the mean product of the gradients for two inputs. Per layer, \
squared gradients change by the
factor χ₁, and c approaches c\\* by the factor χ₂; ξ₁ and ξ₂ are the depth scales 1/|ln χ|. m and \
V are mean and variance over
networks ([mean field theory](../meanfield.md)).""",
    "S2": """\
**Symbols.** n is the width and H the number of heads. G is the kernel of the residual stream, \
and Theta the tangent kernel. C and
Λ are constants of the initial variance and of the learning rate of each group of weights. The \
four strategies (standard,
neural-tangent, hybrid, maximal-update) are choices of initial sizes and learning rates. lr\\* and \
wd\\* are the best learning rate
and weight decay of a search ([kernels of Transformers](../transformer.md)).""",
    "S3": """\
**Symbols.** n is the width, d the depth, l a layer, and t = l/n the time of a limit. V is the \
covariance of the inputs in a layer, and
ρ the correlation of two inputs. A *shaped* activation comes closer to the identity as the network \
grows, at the rate n^-p. SDE and
ODE are the stochastic and the ordinary differential equation that a network tends to ([depth \
limits](../limits.md)).""",
}
COLOURS = 128  # per picture: lines and dots need no more
WIDTH = 860


def entries() -> dict[str, list[Reproduced]]:
    """Return the results by paper, each at the largest scale that is shipped."""
    results: dict[str, list[Reproduced]] = {paper: [] for paper in PAPERS}
    for e in EXPERIMENTS.values():
        result, notes = choose(e, [SHIPPED])
        assert result is not None, notes
        results[e.paper].append(result)
    return results


def pages(results: dict[str, list[Reproduced]]) -> dict[str, str]:
    texts = {"index.md": index(results)}
    for paper, reproduced in results.items():
        body = "\n\n".join(map(section, reproduced))
        title = f"# {paper}: {PAPERS[paper]}"
        texts[f"{paper.lower()}.md"] = (
            f"{title}\n\n{PAGE.format(symbols=SYMBOLS[paper])}\n\n{body}\n"
        )
    return texts


def index(results: dict[str, list[Reproduced]]) -> str:
    lines = [INTRODUCTION.format(**PAPERS)]
    for paper, reproduced in results.items():
        for r in reproduced:
            e = r.experiment
            link = f"[{e.name}]({paper.lower()}.md#{e.name})"
            lines.append(f"| {link} | {e.title} | {r.verdict} | {r.corrected or ''} | {r.scale} |")
    return "\n".join(lines) + "\n"


def section(r: Reproduced) -> str:
    e = r.experiment
    corrected = (
        f" As corrected, it **{r.corrected}**." if (r.corrected or "").startswith("holds") else ""
    )
    lines = [f"## {e.name}", "", f"**{e.title}.** {e.claim}", ""]
    lines += [f"The paper's claim ({e.place}): **{r.verdict}**.{corrected}", ""]
    lines += [f"How it was tested: {e.method}", ""]
    for name, p in pictures(r):
        lines += [
            f"*{cell(p.title)}*" + (f": {cell(p.caption)}" if p.caption else ""),
            "",
            f"![{cell(p.alt)}]({name}.png)",
            "",
        ]
    lines += ["| claim | source | verdict | measured |", "| --- | --- | --- | --- |"]
    for f in r.findings:
        source = f"corrected, {f.erratum}" if f.of == "corrected" else SOURCES[f.of]
        lines.append(f"| {cell(f.claim)} | {source} | {WORDS[f.holds]} | {cell(f.numbers)} |")
    for grid in (p for p in r.pictures if isinstance(p, Grid)):
        lines += ["", f"{grid.title}:", ""]
        lines += [
            "| " + " | ".join(map(cell, row)) + " |"
            for row in (grid.head, ["---"] * len(grid.head), *grid.rows)
        ]
    return "\n".join([*lines, "", provenance(r)])


def provenance(r: Reproduced) -> str:
    parts = list(r.provenance["parts"].values())
    seconds, last = sum(part["seconds"] for part in parts), parts[-1]
    used = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
    return f"`{r.provenance['command']}`: {seconds:.0f} s on {last['device']} ({used})."


def pictures(r: Reproduced) -> list[tuple[str, Picture]]:
    drawn = [p for p in r.pictures if isinstance(p, Picture)]
    return [(f"{r.experiment.name}-{number}", p) for number, p in enumerate(drawn, 1)]


def cell(text: str) -> str:
    """Escape the text for a cell of a Markdown table."""
    return re.sub(r"([|*_`\[\]<>$])", r"\\\1", str(text)).replace("\n", " ")


def plain(figure: "go.Figure") -> dict[str, object]:
    """Return a figure as plain lists and dicts, without arrays."""
    text = figure.to_json()
    assert text is not None
    return json.loads(text)


def draw(results: dict[str, list[Reproduced]]) -> None:
    import plotly.graph_objects as go
    from PIL import Image
    from playwright.sync_api import sync_playwright
    from plotly.offline import get_plotlyjs

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<html><body></body></html>")
        page.add_script_tag(content=get_plotlyjs())
        every = []
        for reproduced in results.values():
            for r in reproduced:
                every += pictures(r)
        chosen = tuple(f"{name}-" for name in sys.argv[1:])
        for name, p in every:
            if chosen and not name.startswith(chosen):
                continue
            figure = go.Figure(plain(go.Figure(dict(p.figure)))).update_layout(
                template="plotly_white"
            )
            size = {"format": "png", "width": WIDTH, "height": figure.layout.height or 440}
            url = page.evaluate(
                "([figure, size]) => Plotly.toImage(figure, size)",
                [plain(figure), size],
            )
            image = (
                Image.open(io.BytesIO(b64decode(url.split(",")[1])))
                .convert("RGB")
                .quantize(COLOURS)
            )
            image.save(HERE / f"{name}.png", optimize=True)
            print(name, flush=True)
        browser.close()


if __name__ == "__main__":
    gallery = entries()
    HERE.mkdir(exist_ok=True)
    for name, text in pages(gallery).items():
        (HERE / name).write_text(text, encoding="utf-8")
    if "--text" not in sys.argv:
        draw(gallery)
