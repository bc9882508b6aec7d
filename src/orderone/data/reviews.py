"""Reviews of films, `[{"t": text, "s": 0 or 1}, ...]`, as one text.

The file is sorted, so that its end is not like its beginning. Reviews are therefore shuffled, in
the same way every time.
"""

import json
import random
from pathlib import Path

SEED = 0


def read_reviews(path: Path) -> list[bytes]:
    """Return one document for each review, in utf-8; marks of line breaks become line breaks."""
    try:
        reviews = json.loads(path.read_bytes())
        texts = [str(review["t"]).replace("<br />", "\n") for review in reviews]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f'source: expected a list of reviews, {{"t": text, ...}}, in {path}, and could not read'
            f" that ({type(error).__name__}: {error})"
        ) from error
    random.Random(SEED).shuffle(texts)
    return [text.encode(errors="replace") for text in texts]
