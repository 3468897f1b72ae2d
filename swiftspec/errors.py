"""Errors: a wrong value, a package that is not installed, a process of the engine that died.

A wrong value has the field's name, which the command line replaces by its flag. The exit code is 2; of the engine, 3.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

# Extra -> the modules that are imported of its packages. Triton is not here: nothing on a CPU imports it.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "engine": ("safetensors", "tokenizers", "torch", "zmq"),
    "plots": ("matplotlib",),
    "ray": ("ray",),
    "serve": ("httptools", "jinja2", "prometheus_client", "starlette", "uvicorn"),
}


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
    """A process that a request or a plan needs has died.

    Attributes
    ----------
    tokens : tuple of int
        Tokens of the request that had been committed.
    """

    tokens: tuple[int, ...] = ()


class EngineBusyError(EngineError):
    """As many requests are waiting as may wait."""


class MissingExtraError(ImportError, ValueError):
    """A missing package of an extra: an ImportError for programs, and the user's to mend, as every ValueError here."""


def check_extra(extra: str, *, needed_by: str) -> None:
    """MissingExtraError, with the command to type, unless the packages of an extra are installed.

    Parameters
    ----------
    needed_by : str
        Subject of the sentence: `--plot`, `the engine`.
    """
    if missing := missing_packages(extra):
        raise MissingExtraError(f"{needed_by} needs {', '.join(missing)}: {install_command(extra)}")


def missing_packages(extra: str) -> list[str]:
    """Modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def install_command(extra: str) -> str:
    """Command that installs an extra."""
    return f"pip install 'swiftspec-llm[{extra}]'"


@contextmanager
def extras_named(needed_by: str) -> Iterator[None]:
    """Context in which an import of a package that only an extra installs raises MissingExtraError."""
    try:
        yield
    except ModuleNotFoundError as error:
        for extra, modules in EXTRAS.items():
            if (error.name or "").partition(".")[0] in modules:
                check_extra(extra, needed_by=needed_by)
        raise
