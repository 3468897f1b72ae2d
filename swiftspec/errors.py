"""Errors that are not the user's: the command line prints them and exits with 3."""

__all__ = ["EngineError"]


class EngineError(RuntimeError):
    """A process that a request cannot do without has gone.

    Attributes
    ----------
    tokens : tuple of int
        What had been committed of the request.
    """

    tokens: tuple[int, ...] = ()
