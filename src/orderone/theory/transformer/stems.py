"""Token kernels of the inputs, and the stem block: embedding and positions.

    vision     G0 = x_t . x_t' / n_patch                      S2 (1.40), patches x_t
    language   G0 = 1 if the words are the same, else 0       S2 (1.44), one-hot words

    G           = C_patch G0 + C_PE delta_tt'                 S2 (1.41), (1.45)
    Theta_patch = Lambda_patch G0                             S2 (1.122)-(1.130)
    Theta_PE    = Lambda_PE delta_tt'

with C_WE instead of C_patch for language. delta_tt' is 1 for tokens at the same position, also of
different sequences: they share one positional embedding. A class token (S2 footnote 4) is the first
token of every sequence; it is the same for all of them and independent of the patches.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

import numpy as np
from array_api_compat import is_numpy_array

from orderone.core.arrays import as_numpy, like
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.kernels.validation import floating
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.weights import Weights

STEMS: dict[str, str] = {"vision": "patch", "language": "WE"}


def patches(X: ArrayLike) -> Array:
    """Return G0 of images cut into patches.

    X is (tokens, features) or (sequences, tokens, features).
    """
    xp, values = floating(X, "X")
    if values.ndim not in (2, 3):
        raise InputError(
            "X: expected shape (tokens, features) or (sequences, tokens, features), got"
            f" {tuple(values.shape)}; cut images into patches first",
            argument="X",
        )
    rows = as_numpy(values).reshape(-1, values.shape[-1])
    return like(_split_points(rows @ rows.T / rows.shape[1], values.shape[:-1]), values, xp)


def words(ids: ArrayLike) -> Array:
    """Return G0 of sequences of words; ids, whole numbers, is (tokens,) or (sequences, tokens)."""
    xp, values = floating(ids, "ids")
    numbers = as_numpy(values)
    if values.ndim not in (1, 2) or (numbers != np.round(numbers)).any():
        raise InputError(
            "ids: expected whole numbers of shape (tokens,) or (sequences, tokens), got shape"
            f" {tuple(values.shape)}; pass the indices of the words",
            argument="ids",
        )
    flat = numbers.ravel()
    same = _split_points((flat[:, None] == flat[None, :]).astype(float), values.shape)
    if is_numpy_array(values):
        return same
    return like(same, values, xp)


def _split_points(matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return matrix
    return matrix.reshape(*shape, *shape)


def embed(
    G0: np.ndarray, tokens: Tokens, group: str, weights: Weights, class_token: bool
) -> Stream:
    """Return the stream after the stem block; `group` is that of the embedding, patch or WE."""
    parts = {group: G0}
    if class_token:
        parts = {group: _after_class_token(G0, tokens)}
        tokens = tokens.longer()
        parts["class"] = _same_position(tokens) * (tokens.position == 0)
    parts["PE"] = _same_position(tokens)
    G = sum(weights.C[name] * part for name, part in parts.items())
    if weights.rates:
        theta = weights.direct(**parts)
    else:
        theta = {}
    return Stream(np.asarray(G), theta, tokens)


def _same_position(tokens: Tokens) -> np.ndarray:
    """Return 1 for points at the same position of their sequences."""
    return (tokens.position[:, None] == tokens.position[None, :]).astype(float)


def _after_class_token(G0: np.ndarray, tokens: Tokens) -> np.ndarray:
    """Return G0 with a row and a column of zeros before the tokens of each sequence."""
    blocks = G0.reshape(tokens.sequences, tokens.length, tokens.sequences, tokens.length)
    return np.pad(blocks, ((0, 0), (1, 0), (0, 0), (1, 0))).reshape([tokens.longer().points] * 2)
