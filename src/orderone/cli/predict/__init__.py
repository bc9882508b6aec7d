"""`orderone predict`: what theory says, without running a network. One file for each theory."""

from tyro.extras import SubcommandApp

from orderone.cli.options import readable
from orderone.cli.predict import exponents, limits, meanfield, phase, strategies, transformer

app: SubcommandApp = SubcommandApp()
app.command(readable(exponents.exponents))
app.command(readable(meanfield.meanfield))
app.command(readable(phase.phase))
app.command(readable(limits.limits))
app.command(readable(strategies.strategies))
app.command(readable(transformer.transformer))
