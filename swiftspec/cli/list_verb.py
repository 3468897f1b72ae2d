"""`swiftspec list`: the names that a plan may use. Its module is imported when it is called."""

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from swiftspec.cli import console, flags
from swiftspec.cli.verb_groups import DATA

__all__ = ["register"]

What = Literal["models", "devices", "policies", "engines"]
_OLD_VERBS: tuple[What, ...] = ("models", "devices", "policies")


def register(app: typer.Typer) -> None:
    """Add `list` to the command line, and the verbs that its lists once were, hidden."""
    app.command("list", rich_help_panel=DATA)(list_names)
    for what in _OLD_VERBS:
        app.command(what, hidden=True)(_old_verb(what))


def list_names(
    what: Annotated[What, typer.Argument(metavar="WHAT", help="What to list.")],
    *,
    json: flags.Json = None,
) -> None:
    """List the models, devices, policies or engines known by name.

    Policies of other installed packages are among them. For any other model of these architectures, give a directory
    with its config.json.

    \b
    Example:
      swiftspec list models --json models.json
    """
    from swiftspec.cli import listing

    lists = {
        "models": listing.list_models,
        "devices": listing.list_devices,
        "policies": listing.list_policies,
        "engines": listing.list_engines,
    }
    lists[what](json_path=json)


def _old_verb(what: What) -> Callable[..., None]:
    def run(*, json: flags.Json = None) -> None:
        console.note(f"swiftspec: `swiftspec {what}` is now `swiftspec list {what}`")
        list_names(what, json=json)

    return run
