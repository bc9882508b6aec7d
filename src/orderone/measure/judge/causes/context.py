"""Facts about a study beside its verdicts, on which causes depend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orderone.core.roles import Role
from orderone.measure.judge.known_numbers import settings_by_size
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.verdict import SYMBOLS
from orderone.measure.observations import StudyResult
from orderone.observe.inventory import inventory
from orderone.observe.quantities import Quantity
from orderone.planning.counterparts import stack_of


@dataclass(frozen=True)
class Context:
    """Facts about the study beside the verdicts."""

    rule: str
    axis: str = "width"
    tied: bool = False
    no_growth: bool = False  # every size gives the same shapes
    base_is_target: bool = False  # a plan whose factors are all 1
    schedule_fault: str = ""  # empty if the schedule is right
    undone: Sequence[str] = ()  # changes that the plan leaves to the model's code
    unscaled_branches: bool = False  # residual branches that nothing scales with depth
    one_rate: bool = False  # one learning rate for everything, where the rule has several
    scheduled: bool = False  # a schedule has set the learning rates
    deeper: bool = False  # layers are added along with the width
    planned: bool = False  # the plan made the optimizer
    follows_gradients: bool = False  # the size of steps follows that of gradients (SGD)
    # readouts whose output a norm divides by its size
    normalized: Sequence[str] = ()
    queries: frozenset[str] = frozenset()  # tensors that make the queries of attention
    # exponents of the outputs of modules that make queries or keys, at the start
    projections: Mapping[str, float] = field(default_factory=dict)
    # exponents of the inputs of modules, at the start
    inputs: Mapping[str, float] = field(default_factory=dict)

    @property
    def in_depth(self) -> bool:
        """True if the models differ in depth."""
        return self.axis == "depth"

    def power(self, exponent: float) -> str:
        """Return a power of the size in words: `n^+0.50`."""
        return f"{SYMBOLS[self.axis]}^{exponent:+z.2f}"


def read_context(study: StudyResult, facts: StudyFacts) -> Context:
    """Gather the facts of a study."""
    return Context(
        rule=study.rule,
        axis=study.axis,
        tied=any(len(item.places) > 1 for item in inventory(study.largest).values()),
        no_growth=study.no_growth,
        base_is_target=_base_is_target(study),
        schedule_fault=study.schedule_fault,
        undone=study.undone,
        unscaled_branches=_has_unscaled_branches(study),
        one_rate=_has_one_rate(study),
        scheduled=bool(settings_by_size(study, "initial_lr")),
        deeper=study.in_width and _has_more_layers(study),
        planned=not study.has_user_optimizer,
        follows_gradients=facts.theory is not None and facts.follows_gradients,
        normalized=_normalized(study, facts),
        queries=_queries(study),
        projections=_projections(study, facts),
        inputs=facts.measured_exponents(Quantity.INPUT),
    )


def _queries(study: StudyResult) -> frozenset[str]:
    """Return the tensors that make the queries of attention, without those that make keys too."""
    names: set[str] = set()
    if study.family is not None:
        for score in study.family.facts.scores:
            names |= set(score.queries) - set(score.keys)
    return frozenset(study.observations.key(name) for name in names)


def _projections(study: StudyResult, facts: StudyFacts) -> dict[str, float]:
    """Return the exponents of the outputs of modules that make queries or keys, in all layers."""
    if study.family is None:
        return {}
    stacks = {stack_of(tensor.rpartition(".")[0]) for tensor in study.family.facts.scored}
    outputs = facts.measured_exponents(Quantity.OUTPUT)
    return {name: power for name, power in outputs.items() if name and stack_of(name) in stacks}


def _normalized(study: StudyResult, facts: StudyFacts) -> list[str]:
    """Return the readouts whose output a norm divides by its size."""
    theory = facts.theory
    if theory is None or study.family is None:
        return []
    names = [study.observations.key(name) for name in study.family.facts.normalized]
    return [name for name in names if theory.rows[name][1].role == Role.READOUT]


def _base_is_target(study: StudyResult) -> bool:
    if study.user_plan is None or study.no_growth:
        return False
    return all(row.shape == row.base_shape for row in study.user_plan.rows)


def _has_one_rate(study: StudyResult) -> bool:
    """Return whether one learning rate is used everywhere, where the rule has several."""
    if not study.has_user_optimizer or not study.plans:
        return False
    rates = set()
    for run in study.observations.runs:
        for first_rates in run.rates[:1]:
            rates.update(first_rates.values())
    planned = {row.default_lr for row in study.plans[study.sizes[-1]].rows}
    return len(rates) == 1 and len(planned) > 1


def _has_more_layers(study: StudyResult) -> bool:
    if not study.plans:
        return False
    return any(row.depth != 1 for row in study.plans[study.sizes[-1]].rows)


def _has_unscaled_branches(study: StudyResult) -> bool:
    if study.axis != "depth" or study.family is None or study.depth_rule is not None:
        return False
    return bool(study.family.facts.branches)
