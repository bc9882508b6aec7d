"""Variances of the first forward and backward pass, at finite widths.

S0: Stratos, "Scale-Invariant Parameterizations", appendices A.1 and D.
"""

from orderone.theory.first_pass.logit_gradient import LogitGradient, logit_gradient
from orderone.theory.first_pass.rms_norm import rms_norm_backward, rms_norm_jacobian
from orderone.theory.first_pass.variances import (
    FirstPass,
    attention_output_var,
    first_pass,
    hidden_weight_var,
)

__all__ = [
    "FirstPass",
    "LogitGradient",
    "attention_output_var",
    "first_pass",
    "hidden_weight_var",
    "logit_gradient",
    "rms_norm_backward",
    "rms_norm_jacobian",
]
