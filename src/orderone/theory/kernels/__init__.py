"""NNGP and NTK kernels of wide networks at initialization, layer by layer.

dense = kernels.Dense(weight_var=2.0)
net = kernels.Sequential(dense, kernels.Activation("relu"), kernels.Dense())
k = net(kernels.inputs(X))
k.nngp, k.ntk
"""

from orderone.theory.kernels.activation import Activation
from orderone.theory.kernels.convolution import Conv
from orderone.theory.kernels.dense import Dense
from orderone.theory.kernels.dropout import Dropout
from orderone.theory.kernels.inputs import covariance, inputs
from orderone.theory.kernels.kernel import Kernel, Points
from orderone.theory.kernels.large import LargeKernels, tiles, write
from orderone.theory.kernels.layer import Layer, Pointwise
from orderone.theory.kernels.norms import LayerNorm, RMSNorm
from orderone.theory.kernels.pooling import AveragePool, Flatten, LocalAveragePool, Positions
from orderone.theory.kernels.product import Product
from orderone.theory.kernels.residual import Residual
from orderone.theory.kernels.scale import Scale, Sum
from orderone.theory.kernels.sequential import Sequential, repeat
from orderone.theory.kernels.tokens import AddPositions, FirstTokens, Token

__all__ = [
    "Activation",
    "AddPositions",
    "AveragePool",
    "Conv",
    "Dense",
    "Dropout",
    "FirstTokens",
    "Flatten",
    "Kernel",
    "LargeKernels",
    "Layer",
    "LayerNorm",
    "LocalAveragePool",
    "Points",
    "Pointwise",
    "Positions",
    "Product",
    "RMSNorm",
    "Residual",
    "Scale",
    "Sequential",
    "Sum",
    "Token",
    "covariance",
    "inputs",
    "repeat",
    "tiles",
    "write",
]
