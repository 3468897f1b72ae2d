"""Run a check by its name: `python -m tools.checks NAME [options]`.

    python -m tools.checks --list
    python -m tools.checks controls --help

A line for each criterion, as soon as it is known: held, missed, or unknown where nothing was measured; `--json` writes
them all. Exit code 1 if one is missed, 2 for a mistake in the command.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from swiftspec.cli import console
from tools.checks.criterion import Criterion
from tools.checks.options import parser_of

CHECKS = (
    *("atts", "controls", "drafts", "export", "fleet", "load", "neighbours", "predictions", "replicas"),
    *("searches", "serving", "sparse_plans", "tenants"),
)
_PROGRAM = "python -m tools.checks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one check, or list them all, and return the exit code."""
    console.begin()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("--list", "--help", "-h"):
        _list()
        return 0
    name, *options = given
    if name not in CHECKS:
        return _mistake(f"the check is {name!r}; expected one of {', '.join(CHECKS)}")
    module = import_module(f"tools.checks.{name}")
    parser = parser_of(module.check, prog=f"{_PROGRAM} {name}", description=module.__doc__)
    parser.add_argument("--json", type=Path, help="write every criterion there")
    try:
        chosen = vars(parser.parse_args(options))
        out: Path | None = chosen.pop("json")
        criteria = list(_judged(module.check, chosen))
        if out is not None:
            document = {"check": name, "criteria": [asdict(criterion) for criterion in criteria]}
            out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except (ValueError, OSError, RuntimeError) as error:  # the last of an engine or a server
        return _mistake(str(error))
    return 1 if any(criterion.held is False for criterion in criteria) else 0


def _judged(check: Callable[..., Iterator[Criterion]], chosen: Mapping[str, Any]) -> Iterator[Criterion]:
    for criterion in check(**chosen):
        console.say(str(criterion))
        yield criterion


def _list() -> None:
    console.say(f"{_PROGRAM} NAME [options]; NAME --help says what it needs\n")
    for name in CHECKS:
        console.say(f"{name:12}  {_summary(Path(__file__).with_name(f'{name}.py'))}")


def _summary(source: Path) -> str:
    """First line of a module's docstring. The module is not imported, since that takes seconds."""
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _mistake(message: str) -> int:
    console.note(f"{_PROGRAM}: error: {' '.join(message.split())}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
