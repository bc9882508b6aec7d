"""A row of a plan: the settings of one tensor, and the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field

from orderone.core.roles import Role
from orderone.optimizers.muon_rates import convert_muon_lr
from orderone.optimizers.row_rates import RowSettings
from orderone.optimizers.table import Eps, find_record, record_named
from orderone.planning.draw import Draw
from orderone.planning.origins import Origin
from orderone.rules.axes import Factors, Growth


@dataclass(frozen=True)
class Block:
    """Settings of some rows of a tensor: the queries or the keys of a packed projection.

    The other rows have the settings of the tensor.
    """

    kind: str  # "queries" or "keys"
    axis: int
    size: int  # number of rows of the tensor along the axis
    ranges: tuple[tuple[int, int], ...]  # rows: first, and one past the last
    init_std: float
    constant: float | None
    lr: float
    weight_decay: float
    eps: Eps
    factors: Factors

    @property
    def share(self) -> float:
        """Fraction of the tensor's entries."""
        return sum(last - first for first, last in self.ranges) / self.size


@dataclass(frozen=True)
class Row:
    """Settings of one tensor, and the reason."""

    name: str
    role: Role
    group: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...] | None
    growth: Growth
    depth: float  # layers of its stack, target over base
    multiplier: float
    init_std: float  # root mean square at initialization
    lr: float
    weight_decay: float
    eps: Eps
    reason: str
    optimizer: str
    uses: tuple[str, ...]  # the modules that hold it
    constant: float | None  # its initial value, if that is a constant (zeros, ones)
    base_name: str | None
    base_std: float | None
    trained: bool = True
    init_scale: float = 1.0  # the user's factor of the initial size; part of `init_std`
    factors: Factors = field(default_factory=Factors)
    # factor of the initial size that the model's own code sets at this depth (depth=None)
    own_depth: float = 1.0
    # size in the base at which the output is of order one; None for gains, biases, unknown fan-in
    order_one: float | None = None
    draw: Draw | None = None  # how values are drawn, if a start replaces those of the model's code
    blocks: tuple[Block, ...] = ()  # rows with settings of their own
    # its output is a matrix, whose fan-in and fan-out are in `growth` (a hypernetwork)
    writes_matrix: bool = False
    # factors of batch size, tokens and further axes; part of lr, weight_decay, eps and betas
    horizon: Factors = field(default_factory=Factors)
    betas: tuple[float, ...] | None = None  # of the optimizer's averages, if an axis changes them
    origins: tuple[Origin, ...] = ()  # factors by axis; their product makes the row
    # part of `multiplier` that other tensors hold: the norm before a tied readout
    carried_multiplier: float = 1.0
    # convention of Muon's learning rate, if it is not torch's default (`optimizers.muon_rates`)
    convention: str | None = None

    @property
    def hook_multiplier(self) -> float:
        """Part of the multiplier that a hook applies in the forward pass; 1 without a hook."""
        return self.multiplier / self.carried_multiplier

    @property
    def default_lr(self) -> float:
        """Learning rate that makes the same steps in the default convention of Muon."""
        if self.convention is None:
            return self.lr
        return convert_muon_lr(self.lr, self.shape, self.convention, "original")

    def rms(self, value: "Callable[[Row | Block], float]") -> float:
        """Return the root mean square of a setting over all entries of the tensor."""
        if not self.blocks:
            return value(self)
        rest = 1.0
        total = 0.0
        for block in self.blocks:
            rest -= block.share
            total += block.share * value(block) ** 2
        return (total + rest * value(self) ** 2) ** 0.5

    @property
    def row_settings(self) -> RowSettings | None:
        """Factors of the blocks, as the entry `rows` of a parameter group."""
        if not self.blocks:
            return None
        record = record_named(self.optimizer)
        law = record.update_law
        blocks: list[RowSettings] = []
        for block in self.blocks:
            # a step relative to the size of the weights uses that of the whole tensor
            if self.lr:
                step = block.lr / self.lr
            else:
                step = 1.0
            if law.weight:
                step *= (block.factors.std / self.factors.std) ** float(law.weight)
            shrinkage = block.lr * block.weight_decay
            whole = self.lr * self.weight_decay
            gradient = 1.0
            if not law.gradient and isinstance(self.eps, float) and isinstance(block.eps, float):
                if block.eps:
                    gradient = self.eps / block.eps
                else:
                    gradient = 1.0
            settings = {
                "ranges": [list(span) for span in block.ranges],
                "lr": step,
                "weight_decay": shrinkage / (whole * step) if whole else 1.0,
                "gradient": 1.0 if law.spectral else gradient,
            }
            if any(abs(settings[name] - 1) > 1e-12 for name in ("lr", "weight_decay", "gradient")):
                blocks.append(settings)
        if not blocks:
            return None
        return {
            "axis": self.blocks[0].axis,
            "size": self.blocks[0].size,
            "decoupled": record.law not in ("sgd", "adam"),
            "blocks": blocks,
        }

    @property
    def eps_name(self) -> str:
        """Name of the setting of the optimizer's groups that holds eps."""
        record = find_record(self.optimizer)
        return "eps" if record is None else record.eps_name

    @property
    def averages(self) -> dict[str, float | tuple[float, ...]]:
        """Betas of the optimizer's averages as a setting of its groups; empty if none changes."""
        if self.betas is None:
            return {}
        return record_named(self.optimizer).with_betas(self.betas)

    @property
    def rule_std(self) -> float:
        """Initial size without the user's factor."""
        return self.init_std / self.init_scale

    @property
    def grows(self) -> str:
        """Growth in words: `in x4, out x4`."""
        sides: list[str] = []
        if self.growth.fan_in != 1:
            sides.append(f"in x{self.growth.fan_in:.4g}")
        if self.growth.fan_out != 1:
            sides.append(f"out x{self.growth.fan_out:.4g}")
        return ", ".join(sides)

    @property
    def initial_growth(self) -> float:
        """Factor by which the initial values, times their multiplier, differ from the base's."""
        std = self.rms(lambda part: part.factors.std)
        return self.factors.multiplier * std * self.own_depth

    def output_growth(self, bias: "Row | None") -> float | None:
        """Return the factor by which the initial output of a module with this weight grows.

        The input is assumed not to change. The result is None if the factor is unknown.
        """
        if self.role == "fixed" or self.base_shape is None:
            return None
        size = self.initial_growth
        if self.role == "vector" or self.writes_matrix:
            return size
        if self.role == "readout" and self.factors.gauge != 1:
            # the forward code multiplies before or after the readout; it is unknown which
            return None
        if bias is not None and bias.role == "fixed" and bias.init_std > 0:
            return None  # a bias of constant size hides a shrinking readout
        if self.role == "embedding":
            # a tensor of several modules is tied, and this module may be the readout
            if len(self.uses) > 1:
                return None
            return size
        return self.growth.fan_in**0.5 * size
