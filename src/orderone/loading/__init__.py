"""Data as users have it (loaders, data sets, iterables, functions), read as batches by number."""
