"""Data that is on every machine: the text of the Python standard library, and scikit-learn's digits."""

from orderone.data.digits import digits, digits_batch
from orderone.data.text import text, text_batch, text_batches

__all__ = ["digits", "digits_batch", "text", "text_batch", "text_batches"]
