"""Pickle a job for another process."""

import pickle

from orderone.core.errors import InputError
from orderone.sweeping.engine import Engine

REMEDY = (
    "define build, data and loss as functions at the top level of an importable module (no lambdas,"
    " no functions inside functions)"
)


def wrapped(engine: Engine) -> bytes:
    """Return the pickled engine.

    With cloudpickle (installed with ray), lambdas and functions of a script or notebook work too.
    """
    try:
        import cloudpickle
    except ImportError:
        return _by_reference(engine)
    try:
        return cloudpickle.dumps(engine)
    except Exception as error:  # pickling raises many kinds of errors
        raise InputError(
            f"executor: the job cannot be sent to another process ({error}); {REMEDY}",
            "job-not-picklable",
            argument="executor",
        ) from error


def _by_reference(engine: Engine) -> bytes:
    job = engine.job
    data = [("data", thing) for thing in job.data.code]
    for name, thing in (("build", job.build), ("loss", job.loss), *data):
        if getattr(thing, "__module__", "") == "__main__":
            raise InputError(
                f"executor: {name} is defined in the script itself, which another process cannot"
                f" import; pip install cloudpickle, or {REMEDY}",
                "job-not-picklable",
                argument="executor",
            )
    try:
        return pickle.dumps(engine)
    except Exception as error:
        raise InputError(
            f"executor: the job cannot be sent to another process ({error}); pip install"
            f" cloudpickle, or {REMEDY}",
            "job-not-picklable",
            argument="executor",
        ) from error


def unwrapped(parcel: bytes) -> Engine:
    return pickle.loads(parcel)
