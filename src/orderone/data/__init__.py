"""Data that is on every machine: the text of the Python standard library, and scikit-learn's digits."""

from orderone.data.digits import digits, digits_batch
from orderone.data.language import Language, language
from orderone.data.task import StackedTask, Task
from orderone.data.text import text, text_batch, text_batches

__all__ = [
    "Language",
    "StackedTask",
    "Task",
    "digits",
    "digits_batch",
    "language",
    "text",
    "text_batch",
    "text_batches",
]
