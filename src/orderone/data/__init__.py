"""Data sets to train on.

The text of the Python standard library and scikit-learn's digits are on every machine. Other data
is read from disk in its usual format. `python -m orderone.data.fetch` downloads some data sets.
"""

from orderone.data.denoising import Denoising, denoising
from orderone.data.digits import digits, digits_batch
from orderone.data.images import S2, Images, images
from orderone.data.language import Language, language
from orderone.data.task import StackedTask, Task
from orderone.data.text import text, text_batch, text_batches

__all__ = [
    "S2",
    "Denoising",
    "Images",
    "Language",
    "StackedTask",
    "Task",
    "denoising",
    "digits",
    "digits_batch",
    "images",
    "language",
    "text",
    "text_batch",
    "text_batches",
]
