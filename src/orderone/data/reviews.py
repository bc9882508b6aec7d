"""Film reviews, `[{"t": text, "s": 0 or 1}, ...]`, as documents.

The file is sorted, so its end differs from its beginning. Reviews are therefore shuffled, always
in the same way.
"""

import json
import random
from pathlib import Path

from orderone.core.errors import InputError

SEED = 0


def read_reviews(path: Path) -> list[bytes]:
    """Return one utf-8 document per review; `<br />` becomes a line break."""
    try:
        reviews = json.loads(path.read_bytes())
        texts = [str(review["t"]).replace("<br />", "\n") for review in reviews]
    except (ValueError, TypeError, KeyError) as error:
        message = (
            f'source: expected a list of reviews {{"t": text, ...}} in {path}; it cannot be read'
            f" ({type(error).__name__}: {error})"
        )
        raise InputError(message, "damaged-file", argument="source") from error
    random.Random(SEED).shuffle(texts)
    return [text.encode(errors="replace") for text in texts]
