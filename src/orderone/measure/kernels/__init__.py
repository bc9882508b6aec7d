"""Kernels of PyTorch models: measured on the model, or in its limit of infinite width.

measure   `empirical_ntk`, `empirical_nngp`, `ntk_costs`; `linearize`; `empirical_adam_ntk`
train     `MSEDynamics`: gradient flow and descent with a constant kernel, for any time
limit     `kernel_from_module`: infinite width, as layers of `theory.kernels`
predict   `KernelRegression`, also for kernels in `Tiles`; `TrainedEnsemble`
"""

from orderone.measure.kernels.adaptive import empirical_adam_ntk
from orderone.measure.kernels.costs import Costs
from orderone.measure.kernels.depth_scales import DepthScales, LayerKernel, kernels_by_layer
from orderone.measure.kernels.dynamics import MSEDynamics, Trained
from orderone.measure.kernels.empirical import empirical_nngp, empirical_ntk, ntk_costs
from orderone.measure.kernels.from_module import ModuleKernel, kernel_from_module
from orderone.measure.kernels.linearized import Linearized, linearize
from orderone.measure.kernels.matrices import Tiles
from orderone.measure.kernels.regression import KernelRegression, TrainedEnsemble

__all__ = [
    "Costs",
    "DepthScales",
    "KernelRegression",
    "LayerKernel",
    "Linearized",
    "MSEDynamics",
    "ModuleKernel",
    "Tiles",
    "Trained",
    "TrainedEnsemble",
    "empirical_adam_ntk",
    "empirical_nngp",
    "empirical_ntk",
    "kernel_from_module",
    "kernels_by_layer",
    "linearize",
    "ntk_costs",
]
