"""All verbs in one program."""

from collections.abc import Sequence

import tyro
from tyro.extras import SubcommandApp

from orderone.cli import check, cite, demo, explore, plan, predict, report, reproduce, sweep

app = SubcommandApp()
app.command(predict.app, name="predict", help="What theory says, without running a network.")
app.command(plan.plan)
app.command(check.check)
app.command(sweep.sweep)
app.command(reproduce.reproduce)
app.command(report.report)
app.command(explore.explore)
app.command(cite.cite)
app.command(demo.demo)


def run(arguments: Sequence[str] | None) -> None:
    app.cli(
        args=arguments,
        prog="orderone",
        description="Keep everything a network computes of order one as it grows.",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
