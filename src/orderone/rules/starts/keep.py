"""The values of the model's own code.

Nothing is drawn: values are those of the constructor, and the rule rescales them. At base size
every bit stays the same.
"""

from orderone.rules.starts.start import Facts, Start


def _size(tensor: Facts) -> float | None:
    return None


KEEP = Start("keep", "the model's own code", "initial values as constructed", _size)
