"""Errors name a field in the library, and its flag on the command line."""

import ast
import pickle
from pathlib import Path

import pytest

from swiftspec.cli.field_names import flag_of
from swiftspec.errors import FieldError

PACKAGE = Path(__file__).resolve().parents[2] / "swiftspec"
# Arguments of functions that no flag gives: of Python's API, of parts of the engine, or of studies.
NO_FLAG = {"acceptance_method"}


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("num_devices", "--devices"),
        ("draft_quant", "--dtype"),
        ("host_s", "--set host_ms"),
        ("think_time_s", "--set think_time_s"),
        ("max_new_tokens", "--max-new-tokens"),
        ("percentile", "--limit p"),
        ("workspace", "workspace"),
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


def test_most_fields_that_errors_name_have_a_flag() -> None:
    """A flag that is renamed is renamed in messages, too, or this finds the field that has none any more."""
    named = {
        str(node.args[0].value)
        for path in PACKAGE.rglob("*.py")
        if "studies" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FieldError"
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(named) > 30
    assert {field for field in named if not flag_of(field).startswith("--")} <= NO_FLAG
