"""Pillow, which only files of images need."""

from typing import Any


def pillow() -> Any:
    """Its module Image, or an ImportError with the command that brings it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pillow is needed to read image files; pip install 'orderone[data]'") from error
    return Image
