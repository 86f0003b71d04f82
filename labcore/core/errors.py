"""One small tree of errors. A message says what was got, what was expected, and what to do.

>>> raise InvalidRequest("max_tokens is 0; expected 1 or more")
Traceback (most recent call last):
...
labcore.core.errors.InvalidRequest: max_tokens is 0; expected 1 or more
"""


class LabError(Exception):
    """Base of every error that labcore raises on purpose."""


class InvalidConfig(LabError, ValueError):
    """A configuration that cannot work."""


class InvalidRequest(LabError, ValueError):
    """A request refused when it is added: nothing of it has been done."""


class InvalidCheckpoint(LabError, ValueError):
    """A model file that is missing, damaged, or not of a supported kind."""


class InvalidTrace(LabError, ValueError):
    """A file that is no trace, or a damaged one, or of a version that is not read."""


class ShapeError(LabError, ValueError):
    """An array handed to a kernel has another shape than its operator needs."""


class BackendUnavailable(LabError, RuntimeError):
    """A backend that is unknown, or that this machine cannot run."""


class BrokenArtefact(LabError, RuntimeError):
    """A compiled file that cannot be used: of another machine or Python, or damaged. No other backend steps in."""


class FetchFailed(LabError, RuntimeError):
    """A model could not be fetched or did not verify."""


class SetupFailed(LabError, RuntimeError):
    """The environment could not be made, or what runs in it could not start."""


class OutOfBlocks(LabError, RuntimeError):
    """The KV pool cannot serve an allocation. The scheduler answers by preempting; nobody else sees it."""


class NumericalError(LabError, ArithmeticError):
    """A NaN where a number must be."""
