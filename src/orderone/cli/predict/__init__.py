"""`orderone predict`: what theory says, without running a network. One file for each theory."""

from tyro.extras import SubcommandApp

from orderone.cli.predict import exponents, limits, meanfield, phase, strategies, transformer

app = SubcommandApp()
app.command(exponents.exponents)
app.command(meanfield.meanfield)
app.command(phase.phase)
app.command(limits.limits)
app.command(strategies.strategies)
app.command(transformer.transformer)
