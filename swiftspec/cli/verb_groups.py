"""Groups of verbs, as `swiftspec --help` shows them. A verb names its own as the panel of its help."""

from typing import Any, Final

from typer.core import TyperGroup

__all__ = ["CHECK", "DATA", "DECIDE", "GROUPS", "MEASURE", "MORE", "USE", "VerbGroups"]

MEASURE: Final = "Measure"
DECIDE: Final = "Decide"
USE: Final = "Use"
CHECK: Final = "Check"
DATA: Final = "Data"
MORE: Final = "Demonstrate and study"
GROUPS: Final = (MEASURE, DECIDE, USE, CHECK, DATA, MORE)  # in the order of the help


class VerbGroups(TyperGroup):
    """A command line whose help shows its verbs group by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # the library keeps their types to itself
        commands = {verb: self.commands[verb] for verb in self.list_commands(ctx) if not self.commands[verb].hidden}
        width = max(map(len, commands))
        for group in GROUPS:
            rows = [
                (verb.ljust(width), command.get_short_help_str(formatter.width - width))
                for verb, command in commands.items()
                if getattr(command, "rich_help_panel", None) == group
            ]
            with formatter.section(group):
                formatter.write_dl(rows)
