"""Python interpreters that this one starts: none of them looks for modules in the current folder.

`python -c` and `python -m` look there first, so that anybody's `socket.py` in a shared folder would be run with the
rights of whoever starts a command there, and one's own `queue.py` would keep it from starting. A command has its
environment to itself (`swiftspec.cli.program`); a library shares it with its program, and uses what is here.

If this package itself lies in the current folder, that folder is believed: its other packages may lie there, too.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The package is loaded from where this process has it, even if that is the current folder and another version is
# installed. What else lies there is found only if it lies nowhere else: all packages may have been copied there.
_PROGRAM = """\
import sys
from importlib import import_module, machinery, util
module, root = sys.argv.pop(1), sys.argv.pop(1)
sys.path.append(root)
spec = machinery.PathFinder.find_spec("swiftspec", [root])
sys.modules["swiftspec"] = package = util.module_from_spec(spec)
spec.loader.exec_module(package)
import_module(module).main()
"""
_IN_RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_FLAGS = "_args_from_interpreter_flags"
_starting = RLock()


def safe_path() -> dict[str, str]:
    """Environment variables for interpreters that are started by someone else's code."""
    return {} if _lies_here() else {"PYTHONSAFEPATH": "1"}


def _lies_here() -> bool:
    try:
        return os.getcwd() == _ROOT
    except FileNotFoundError:  # the current folder has been removed
        return False


def interpreter_command(module: str, *arguments: str) -> list[str]:
    """Command line of an interpreter that calls `main` of a module of this package."""
    return [sys.executable, "-P", "-c", _PROGRAM, module, _ROOT, *arguments]


@contextmanager
def safe_multiprocessing() -> Iterator[None]:
    """Context in which multiprocessing, and loky with it, start interpreters as this module promises.

    They repeat this interpreter's flags on the command lines, and have no setting for more. The environment would do,
    but threads of the program, and of its C libraries, may be reading it. A program's own start of a process meanwhile
    loses nothing, since multiprocessing hands its search path on.
    """
    from multiprocessing import util  # takes 10 ms, which most commands avoid

    with _starting:
        flags = getattr(util, _FLAGS)
        if not _lies_here():
            setattr(util, _FLAGS, lambda: [*flags(), "-P"])
        try:
            yield
        finally:
            setattr(util, _FLAGS, flags)


@contextmanager
def ray_options() -> Iterator[Mapping[str, Any]]:
    """Options for `ray.init`, to be used within the context: its workers get an empty folder to work in.

    Otherwise they would look for modules in this program's current folder first, then in its script's. A job that was
    submitted has a folder already; and where this package lies in one of those folders, workers may need it.
    """
    from tempfile import TemporaryDirectory  # takes 5 ms

    if _IN_RAY_JOB in os.environ or _lies_here() or sys.path[0] == _ROOT:
        yield {}
        return
    with TemporaryDirectory(prefix="swiftspec-ray-") as folder:
        yield {"runtime_env": {"working_dir": folder}}
