"""K models of the same shape trained as one: stacked tensors, one pass and one update for all.

    loss_k(theta_k, batch_k), k = 1..K:     d/d theta_k  sum_j loss_j = d loss_k / d theta_k

So the gradient of the sum contains the gradient of each member, and a member that diverges does not
affect the others.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.observe.batches import Loss
from orderone.optimizers.update import member_norm
from orderone.training.loss_scale import LossScale
from orderone.training.modes import evaluation_mode
from orderone.training.stacked.alike import must_be_alike, stack_tensors
from orderone.training.stacked.draws import MemberDraws
from orderone.training.stacked.groups import Batch, must_use_the_same
from orderone.training.stacked.optimizer import StackedOptimizer
from orderone.training.stacked.program import Program
from orderone.training.stacked.traced import Pass

SCALE = "loss:scale"  # cannot be the name of a parameter or buffer of a module
GENERATORS = "generators:"  # states of the random generators of members


class Stack:
    """Many models trained in one program: `step(batch)` updates all members.

    The leaves of a batch have a leading axis of members.

    Args:
        models: Initialised models of the same structure.
        optimizers: Optimizers of torch (or of plans), one per model. Only their settings are read.
        loss: As in `coord_check`.
        device: Where to train; by default the device of the first model.
        precision: torch.bfloat16 or torch.float16 for mixed precision (float16 with a scale of the
            loss for each member); None computes in the precision of the tensors.
        clip: Largest norm of a member's gradient, or one for each member.
        compile: Compile captured steps (`CapturedStep`); `step` itself is not compiled.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        *,
        loss: Loss | None = None,
        device: torch.device | str | None = None,
        precision: torch.dtype | None = None,
        clip: float | Sequence[float] | None = None,
        compile: bool = False,
    ):
        must_be_alike(models)
        if device is None:
            device = next(models[0].parameters()).device
        else:
            device = torch.device(device)
        parameters, buffers = stack_tensors(models, device)
        self.parameters: dict[str, Tensor] = parameters
        self.buffers: dict[str, Tensor] = buffers
        names: list[dict[Tensor, str]] = []
        for model in models:
            names.append({p: name for name, p in model.named_parameters()})
        self.optimizer: StackedOptimizer = StackedOptimizer(parameters, optimizers, names)
        if device.type == "cpu":
            draws = MemberDraws(len(models))
        else:
            draws = None
        self.program: Program = Program(models[0].to(device), loss, precision, draws)
        self.places: dict[str, nn.Parameter] = dict(self.program.model.named_parameters())
        self.scale: LossScale | None = None
        if precision == torch.float16:
            self.scale = LossScale(device, len(models))
        self.clip: Tensor | None = None  # (K,): a compiled program serves other values, too
        if clip is not None:
            self.clip = torch.tensor(clip, dtype=torch.float64, device=device).expand(len(models))
        self.compile = compile

    def __len__(self) -> int:
        return len(next(iter(self.parameters.values())))

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return next(iter(self.parameters.values())).device

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed the random numbers of the members, where members draw those of stand-alone runs."""
        if self.program.draws is not None:
            self.program.draws.seed(seeds)

    def exchanged_parameter(self) -> str | None:
        """Return the first name that belongs to another parameter than at the start, if any.

        Passes take the tensors of the stack by name. So a model that exchanges modules with
        parameters, or removes them, does so without effect.
        """
        now = dict(self.program.model.named_parameters())
        for name in {**self.places, **now}:
            if now.get(name) is not self.places.get(name):
                return name
        return None

    def compile_updates(self) -> None:
        """Compile each update into one kernel from the next step on."""
        self.optimizer.compile_updates()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        return {**self.parameters, **self.buffers}

    @property
    def pass_tensors(self) -> dict[str, Tensor]:
        """Tensors that the passes read: `tensors`, and the scale of the loss."""
        if self.scale is None:
            return self.tensors
        return {**self.tensors, SCALE: self.scale.scale}

    def step(self, *batches: Batch, factor: float | None = None, run: Pass | None = None) -> Tensor:
        """Make one update and return the loss of each member, (K,).

        With several batches, the update uses the mean of their gradients. `factor` multiplies all
        learning rates (the schedule). `run` is a traced form of `losses_and_gradients`.
        """
        losses, gradients = self.gradients(batches, run)
        finite = self.unscale(gradients)
        self.update(gradients, factor, finite)
        return losses

    def unscale(self, gradients: Mapping[str, Tensor]) -> Tensor | None:
        """Divide the gradients by the scales of the losses, in place.

        Return which members have finite gradients, (K,); None if losses are not scaled.
        """
        if self.scale is None:
            return None
        finite = self.scale.unscale(gradients.values())
        self.scale.update(finite)
        return finite

    @torch.no_grad()
    def update(
        self,
        gradients: Mapping[str, Tensor],
        factor: float | None = None,
        finite: Tensor | None = None,
    ) -> None:
        """Clip the gradients, in place, and let the optimizer make a step for `finite` members."""
        if factor is not None:
            self.optimizer.factor.fill_(factor)
        if self.clip is not None:
            _clip(gradients.values(), self.clip)
        self.optimizer.step(gradients, finite)

    def gradients(
        self, batches: Sequence[Batch], run: Pass | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses and gradients, each the mean over the batches."""
        run = run or self.losses_and_gradients
        losses_of_batches: list[Tensor] = []
        sums: dict[str, Tensor] = {}
        for batch in batches:
            losses, gradients = run(self.pass_tensors, batch)
            for name, g in gradients.items():
                if name in sums:
                    g = sums[name] + g
                sums[name] = g
            losses_of_batches.append(losses)
        if len(batches) > 1:
            for name, g in sums.items():
                sums[name] = g / len(batches)
        total = sum(losses_of_batches[1:], start=losses_of_batches[0])
        return total / len(batches), sums

    def losses_and_gradients(
        self, tensors: Mapping[str, Tensor], batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses (K,), and the gradients of the tensors that were used.

        `tensors` are `pass_tensors` of this stack. Tensors without a gradient are not updated, as
        in torch. In float16, the gradients are those of the scaled losses.
        """
        scale = tensors.get(SCALE)
        tensors = {name: x for name, x in tensors.items() if name != SCALE}
        self.program.passes.clear()
        losses = self._losses(tensors, batch)
        total = (losses if scale is None else losses * scale).sum()
        trained = {name: tensors[name] for name, p in self.parameters.items() if p.requires_grad}
        inputs = list(trained.values())
        passes = list(self.program.passes)
        if len(passes) > 1:
            inputs += [part[name] for part in passes for name in trained]
        with self.program.explained():
            found = torch.autograd.grad(total, inputs, allow_unused=True)
        must_use_the_same(list(trained), found[len(trained) :])
        gradients: dict[str, Tensor] = {}
        for name, g in zip(trained, found, strict=False):
            if g is not None:
                gradients[name] = g
        return losses.detach(), gradients

    def _losses(self, tensors: Mapping[str, Tensor], batch: Batch, shared: bool = False) -> Tensor:
        losses, replaced = self.program.losses(tensors, batch, shared)
        with torch.no_grad():
            for name, value in replaced.items():
                tensors[name].copy_(value)
        return losses

    @torch.no_grad()
    def evaluate(self, batch: Batch, measure: Loss | None = None) -> Tensor:
        """Return the losses (K,) in evaluation mode, on a batch that all members share.

        `measure` is another function of outputs and targets instead of the loss.
        """
        with evaluation_mode(self.program.model):
            if measure is None:
                return self._losses(self.tensors, batch, shared=True)
            old = self.program
            program = Program(old.model, measure, old.precision, old.draws)
            values, _ = program.losses(self.tensors, batch, shared=True)
            return values

    # --- state ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name, for a checkpoint."""
        state = self.tensors
        for name, tensor in self.optimizer.tensors().items():
            state[f"optimizer:{name}"] = tensor
        if self.scale is not None:
            for name, tensor in self.scale.tensors().items():
                state[f"loss:{name}"] = tensor
        if self.program.draws is not None:
            for name, tensor in self.program.draws.tensors().items():
                state[f"{GENERATORS}{name}"] = tensor
        return state

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], members: Sequence[int] | None = None) -> None:
        """Load what `state()` returned; for a larger stack, load only `members` of it."""
        generators: dict[str, Tensor] = {}
        for name, tensor in self.state().items():
            values = state[name]
            if members is not None:
                values = values[list(members)]
            tensor.copy_(values)
            if name.startswith(GENERATORS):
                generators[name.removeprefix(GENERATORS)] = tensor
        if self.program.draws is not None:
            self.program.draws.load(generators)

    @torch.no_grad()
    def keep(self, members: Iterable[int]) -> None:
        """Continue with these members only."""
        members = list(members)
        chosen = torch.tensor(members, device=self.device)
        if self.program.draws is not None:
            self.program.draws.keep(members)
        parameters: dict[str, Tensor] = {}
        for name, p in self.parameters.items():
            parameters[name] = p[chosen].clone().requires_grad_(p.requires_grad)
        self.parameters = parameters
        self.buffers = {name: buffer[chosen].clone() for name, buffer in self.buffers.items()}
        self.optimizer.keep(chosen, self.parameters)
        if self.clip is not None:
            self.clip = self.clip[chosen]
        if self.scale is not None:
            self.scale.keep(chosen)

    def member(self, k: int) -> dict[str, Tensor]:
        """Return the tensors of one member, for `load_state_dict(..., strict=False)` of a model."""
        return {name: tensor[k].detach().clone() for name, tensor in self.tensors.items()}


def _clip(gradients: Iterable[Tensor], largest: Tensor) -> None:
    """Clip the gradient of each member separately, like torch.nn.utils.clip_grad_norm_."""
    gradients = list(gradients)
    norms = torch.stack([member_norm(g).flatten() for g in gradients])
    norm = torch.linalg.vector_norm(norms, dim=0)
    # torch divides a number by a tensor in this way
    scale = ((norm + 1e-6).reciprocal() * largest.to(norm.dtype)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale.to(g.dtype).view(-1, *[1] * (g.dim() - 1)))
