"""Errors name a field in the library, and its flag on the command line."""

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from swiftspec.cli.app import app
from swiftspec.cli.command import flag_of
from swiftspec.errors import FieldError

PACKAGE = Path(__file__).resolve().parents[2] / "swiftspec"


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("num_devices", "--devices"),
        ("draft_quant", "--dtype"),
        ("host_s", "--set host_ms"),
        ("think_time_s", "--set think_time_s"),
        ("max_new_tokens", "--max-new-tokens"),
        ("percentile", "--limit p"),
        ("set seqs", "--set seqs"),
        ("end_marker", "--end-marker"),
        ("--target", "--target"),
    ],
)
def test_a_field_has_one_flag(field: str, flag: str) -> None:
    assert flag_of(field) == flag


def test_an_error_is_named_by_field_or_flag() -> None:
    error = FieldError("num_devices", 99, "expected 1 to 16")
    assert str(error) == "num_devices is 99; expected 1 to 16"
    assert error.named(flag_of(error.field)) == "--devices is 99; expected 1 to 16"
    assert (
        str(FieldError("device", "'cuda', but torch finds no GPU here"))
        == "device is 'cuda', but torch finds no GPU here"
    )


def test_an_error_of_another_process_is_the_same() -> None:
    error = pickle.loads(pickle.dumps(FieldError("split", "4+4", "expected at most 4")))
    assert (str(error), error.field) == ("split is 4+4; expected at most 4", "split")


def test_every_field_that_an_error_names_has_a_flag() -> None:
    """A flag that is renamed is renamed in messages, too, or this finds the field that has none any more."""
    fields = {
        str(node.args[0].value)
        for path in PACKAGE.rglob("*.py")
        if "studies" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FieldError"
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(fields) > 30
    commands: dict[str, Any] = vars(get_command(app))["commands"]
    known = {option for command in commands.values() for each in command.params for option in each.opts}
    assert {field for field in fields if flag_of(field).partition(" ")[0] not in known} == set()
