"""Errors that are not the user's: the command line prints them and exits with 3."""

__all__ = ["EngineBusyError", "EngineError"]


class EngineError(RuntimeError):
    """A process that a request needs has died.

    Attributes
    ----------
    tokens : tuple of int
        Tokens of the request that had been committed.
    """

    tokens: tuple[int, ...] = ()


class EngineBusyError(EngineError):
    """As many requests are waiting as may wait."""
