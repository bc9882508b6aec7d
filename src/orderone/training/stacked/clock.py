"""Clock that compares two ways to compute the same."""

import time

import torch


def seconds_of_work() -> float:
    """Return seconds from some start, of which differences count.

    With one thread of torch, these are seconds of CPU time of the calling thread, so that other
    programs do not decide which way looks faster. Several threads share the work, and only the time
    that passes shows how well.
    """
    if torch.get_num_threads() == 1:
        return time.thread_time()
    return time.perf_counter()
