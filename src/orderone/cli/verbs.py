"""All verbs in one program."""

from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from orderone.cli import check, cite, demo, explore, plan, predict, report, reproduce, sweep
from orderone.cli.options import readable

app: SubcommandApp = SubcommandApp()
app.command(predict.app, name="predict", help="What theory says, without running a network.")
app.command(readable(plan.plan))
app.command(readable(check.check))
app.command(readable(sweep.sweep))
app.command(readable(reproduce.reproduce))
app.command(readable(report.report))
app.command(readable(explore.explore))
app.command(readable(cite.cite))
app.command(readable(demo.demo))


def run(arguments: Sequence[str] | None) -> None:
    """Parse the command line and run a verb."""
    app.cli(
        args=arguments,
        prog="orderone",
        description=(
            "Keep everything a network computes of order one as it grows. New here? Try `orderone"
            " demo`."
        ),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
