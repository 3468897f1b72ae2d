"""Extras of the installation: packages that planning does without, and the command that installs them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["EXTRAS", "MissingExtraError", "check_extra", "extras_named", "install_command", "missing_packages"]

# Extra -> the modules that are imported of its packages. Triton is not here: nothing on a CPU imports it.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "engine": ("safetensors", "tokenizers", "torch", "zmq"),
    "plots": ("matplotlib",),
    "ray": ("ray",),
    "serve": ("httptools", "jinja2", "prometheus_client", "starlette", "uvicorn"),
}


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
