"""The job on its way to another process."""

import pickle

from orderone.sweeping.engine import Engine

REMEDY = (
    "define build, data and loss in a module of their own, as functions (no lambdas, nothing inside"
    " a function)"
)


def wrapped(engine: Engine) -> bytes:
    """With cloudpickle, where it is installed (ray brings it), also lambdas and functions of a
    script or notebook."""
    try:
        import cloudpickle
    except ImportError:
        return _by_reference(engine)
    try:
        return cloudpickle.dumps(engine)
    except Exception as error:  # what cannot be pickled says so in many ways
        raise ValueError(
            f"executor: the job cannot be sent to another process ({error}); {REMEDY}"
        ) from error


def _by_reference(engine: Engine) -> bytes:
    job = engine.job
    for name, thing in (("build", job.build), ("loss", job.loss), ("data", job.data.batch)):
        if getattr(thing, "__module__", "") == "__main__":
            raise ValueError(
                f"executor: {name} is of the script itself; pip install cloudpickle, or {REMEDY}"
            )
    try:
        return pickle.dumps(engine)
    except Exception as error:
        raise ValueError(
            f"executor: the job cannot be sent to another process ({error}); pip install"
            f" cloudpickle, or {REMEDY}"
        ) from error


def unwrapped(parcel: bytes) -> Engine:
    return pickle.loads(parcel)
