"""Models and optimizers that orderone cannot work with: refused before anything is trained."""

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.observe.inventory import inventory, modules_by_name
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.record import Algorithm, check_closure
from orderone.optimizers.table import ALGORITHMS, nearest_record


def check_model(model: nn.Module, algorithm: Algorithm) -> None:
    """Raise an InputError if no plan can be made for this model and optimizer."""
    check_modules(model)
    _check_tensors(model, algorithm)


def check_modules(model: nn.Module) -> None:
    """Raise an InputError if torch.jit has compiled a module of the model."""
    for name, module in modules_by_name(model).items():
        if isinstance(module, torch.jit.ScriptModule):
            message = (
                f"model: torch.jit has compiled {name or 'it'}, which hides modules and takes no"
                " hooks; pass the plain nn.Module, and compile it after training"
            )
            raise InputError(message, "scripted-model", argument="model")


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise an InputError if an optimizer of the user cannot train this model step by step."""
    if isinstance(optimizer, CombinedOptimizer):
        return  # a plan has made it, and has checked the model
    check_closure(type(optimizer))
    record = nearest_record(type(optimizer))
    if record is not None and record.torch_class is type(optimizer):
        _check_tensors(model, record)


def has_sparse_gradients(model: nn.Module) -> bool:
    """Return whether a trained table of the model has sparse gradients."""
    return bool(_sparse_tables(model))


def _check_tensors(model: nn.Module, algorithm: Algorithm) -> None:
    if not algorithm.takes_complex:
        for name, item in inventory(model).items():
            if item.tensor.is_complex() and item.tensor.requires_grad:
                message = (
                    f"optimizer: {algorithm.label} takes real tensors only, and {name} is complex;"
                    f" expected one of {_able('takes_complex')}, or a real parameter with real and"
                    " imaginary parts (torch.view_as_complex in the forward code)"
                )
                raise InputError(message, "complex-tensors", argument="optimizer")
    if not algorithm.takes_sparse:
        for table in _sparse_tables(model):
            message = (
                f"model: {table} has sparse gradients (sparse=True), which {algorithm.label} does"
                " not take; build it with sparse=False, or use one of"
                f" {_able('takes_sparse')}"
            )
            raise InputError(message, "sparse-gradients", argument="model")


def _sparse_tables(model: nn.Module) -> list[str]:
    tables: list[str] = []
    for name, module in modules_by_name(model).items():
        is_table = isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        if is_table and module.sparse and module.weight.requires_grad:
            tables.append(name)
    return tables


def _able(ability: str) -> str:
    return ", ".join(name for name, record in ALGORITHMS.items() if getattr(record, ability))
