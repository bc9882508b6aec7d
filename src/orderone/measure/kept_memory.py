"""Keep freed memory in the process while a check runs, for the next run of the check.

A check builds and trains many models of the same sizes. With its usual settings, glibc returns the
memory of a model to Linux, which hands it out again page by page for the next model: 1.5 us for
4 KiB, ten times as long as torch takes to fill them. Inside the context, freed memory below
`LARGEST` bytes per tensor stays in the process; at the end all free memory is returned.

glibc cannot be asked for its present thresholds. Afterwards they are the largest to which glibc
raises them by itself, once a program has freed a tensor of that size.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# numbers of the parameters of mallopt
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST = 2**25  # glibc raises its threshold for tensors with memory of their own up to this
USUAL = 2 * LARGEST  # and returns more free memory than this
UNLIMITED = 2**31 - 1  # the largest number that mallopt takes
SETTINGS_OF_USER = ("GLIBC_TUNABLES", "MALLOC_")  # beginnings of environment variables


@contextmanager
def kept_memory() -> Iterator[None]:
    """Do not return freed memory to Linux inside the context."""
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGEST)
    library.mallopt(M_TRIM_THRESHOLD, UNLIMITED)
    try:
        yield
    finally:
        library.mallopt(M_TRIM_THRESHOLD, USUAL)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc with its own settings; None otherwise."""
    if sys.platform != "linux" or any(name.startswith(SETTINGS_OF_USER) for name in os.environ):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        return None
    return library
