"""Errors: a caller's wrong value, which the command line names by its flag, and those of the engine (exit code 3)."""

__all__ = ["EngineBusyError", "EngineError", "FieldError"]


class FieldError(ValueError):
    """A value that a caller gave cannot be used: `num_devices is 99; expected 1 to 16`.

    Parameters
    ----------
    field : str
        Name of the argument. A field of a file is none: files are named before their fields, in a `ValueError`.
    value : object
        As the message has it: `99`, or `4+4, which takes 8 devices`.
    expected : str, optional
        The rest of the sentence: what was expected, or why the value cannot be used.
    """

    def __init__(self, field: str, value: object, expected: str = "") -> None:
        super().__init__(field, value, expected)
        self.field, self.value, self.expected = field, str(value), expected

    def __str__(self) -> str:
        return self.named(self.field)

    def named(self, field: str) -> str:
        """The message with another name of the field, such as its flag's."""
        return f"{field} is {self.value}" + (f"; {self.expected}" if self.expected else "")


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
