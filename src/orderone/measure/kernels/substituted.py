"""A model at other values of its parameters.

`torch.func.functional_call` replaces the tensors of a module twice if it has two names, like a
layer that runs twice, and leaves the values of the call in the model. Here every tensor is replaced
once.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.func import functional_call


def call_at(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """Call the model with these parameters; tied ones change together."""
    values = {id(model.get_parameter(name)): value for name, value in parameters.items()}
    places: set[tuple[int, str]] = set()
    replaced: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path, _, attribute = name.rpartition(".")
        place = (id(model.get_submodule(path)), attribute)
        if id(parameter) in values and place not in places:
            places.add(place)
            replaced[name] = values[id(parameter)]
    return functional_call(model, replaced, tuple(args), dict(kwargs), tie_weights=False)
