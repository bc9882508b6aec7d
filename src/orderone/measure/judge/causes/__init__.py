"""From failed lines of a check to its likely causes.

table         the causes in order: root causes first, symptoms last
everything    causes that explain all failures
tensors       settings, initial sizes and factors of single tensors
steps         steps that are not what learning rates and gradients imply
symptoms      sizes in the forward and the backward pass
context       facts about the study beside the verdicts
failed_lines  what conditions and sentences ask of failed lines
"""

from orderone.measure.judge.causes.context import Context, read_context
from orderone.measure.judge.causes.table import TABLE, Cause, Scope, likely_causes

__all__ = ["TABLE", "Cause", "Context", "Scope", "likely_causes", "read_context"]
