"""Stack of the members of a sweep."""

from collections.abc import Sequence

from orderone.sweeping.job import Job
from orderone.sweeping.member import Member
from orderone.training.fresh_loss import fresh_loss
from orderone.training.stacked.stack import Stack


def make_stack(job: Job, members: Sequence[Member]) -> Stack:
    return Stack(
        [member.model for member in members],
        [member.optimizer() for member in members],
        loss=fresh_loss(job.loss or job.data.loss),
        device=job.device,
        precision=job.settings.half,
        clip=job.clip,
        compile=bool(job.compile),
    )
