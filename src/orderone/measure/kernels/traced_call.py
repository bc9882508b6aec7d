"""One call of a function of torch in a traced forward pass."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Call:
    """A function with its arguments and result; `name` has no marks of methods."""

    name: str
    func: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    result: object

    @property
    def tensor(self) -> Tensor:
        """Return the result of a function that returns one tensor."""
        assert isinstance(self.result, Tensor)
        return self.result

    def given(self, *names: str) -> dict[str, object]:
        """Return the arguments by name; `names` are those of positional arguments."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def option(self, name: str, default: object = None) -> object:
        """Return the argument behind the first one, by position or by name."""
        return self.kwargs.get(name, self.args[1] if len(self.args) > 1 else default)

    def others(self, tensor: Tensor) -> list[object]:
        """Return all arguments but one tensor."""
        return [a for a in (*self.args, *self.kwargs.values()) if a is not tensor]

    def has_only_numbers(self, tensor: Tensor) -> bool:
        """Return whether all arguments but the tensor are numbers."""
        return all(isinstance(other, int | float) for other in self.others(tensor))


def whole_numbers(value: object) -> tuple[int, ...]:
    """Return one number, or several, as a tuple."""
    if isinstance(value, int):
        return (value,)
    assert isinstance(value, Iterable)
    return tuple(int(number) for number in value)
