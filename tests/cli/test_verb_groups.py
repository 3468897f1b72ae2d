"""Verbs in the groups of `swiftspec --help`."""

import re

import pytest
import typer.main

from swiftspec.cli.app import app, main
from swiftspec.cli.command import Group


def test_every_verb_is_shown_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    *_, shown = capsys.readouterr().out.partition(f"{Group.MEASURE}:\n")
    assert re.findall(r"^(\S.*):$", shown, re.MULTILINE) == list(Group)[1:]
    verbs = re.findall(r"^  (\S+)", shown, re.MULTILINE)
    commands = typer.main.get_group(app).commands
    assert sorted(verbs) == sorted(verb for verb, command in commands.items() if not command.hidden)
