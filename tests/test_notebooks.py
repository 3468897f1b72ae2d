"""Notebooks are up to date: cells run in order, and print what is stored with them.

After a change of figures: run them again, as notebooks/README.md says.
"""

import ast
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import swiftspec

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ABOUT_THE_INSIDE = "reproducing_the_papers_figures"  # published inputs of the cost model, and closed forms
NUMBER = re.compile(r"[-+]?\d+(?:\.(\d+))?")
LARGEST_CHANGE = 0.02  # relative, of a printed number: another processor rounds otherwise
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/*-])/(?:home|root|tmp|work|usr|opt|var|mnt|Users)/|[A-Z]:\\\\")

by_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

Cell = dict[str, Any]


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path: Path) -> list[Cell]:
    return [cell for cell in load(path)["cells"] if cell["cell_type"] == "code"]


def outputs(path: Path) -> list[Cell]:
    return [output for cell in code_cells(path) for output in cell["outputs"]]


def source(cell: Cell) -> str:
    """Python alone: magics set how figures are shown, and none is."""
    return "".join("\n" if line.startswith("%") else line for line in cell["source"])


def printed(cell: Cell) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def differences(left: str, right: str) -> list[str]:
    """Words that differ; numbers may by a little, or by two units of their last digit."""
    words = [text.split() for text in (left, right)]
    if len(words[0]) != len(words[1]):
        return [f"{len(words[0])} words, {len(words[1])} stored"]
    return [f"{ours}, stored {stored}" for ours, stored in zip(*words, strict=True) if not same(ours, stored)]


def same(left: str, right: str) -> bool:
    if NUMBER.sub("0", left) != NUMBER.sub("0", right):
        return False
    for ours, stored in zip(NUMBER.finditer(left), NUMBER.finditer(right), strict=True):
        value, expected = float(ours.group()), float(stored.group())
        unit = 10.0 ** -len(stored.group(1) or "") if stored.group(1) else 0.0
        if abs(value - expected) > max(LARGEST_CHANGE * abs(expected), 2.001 * unit):
            return False
    return True


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


def imported(path: Path) -> set[str]:
    """Modules of the package that a notebook names; what it takes of the package itself is public."""
    found: set[str] = set()
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    return {name for name in found if name.partition(".")[0] == "swiftspec"}


def taken(path: Path) -> set[str]:
    """Attributes of `swiftspec` that a notebook uses."""
    nodes = (node for cell in code_cells(path) for node in ast.walk(ast.parse(source(cell))))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "swiftspec"}


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem != ABOUT_THE_INSIDE], ids=lambda p: p.stem)
def test_notebooks_need_nothing_but_the_public_names(path: Path) -> None:
    assert imported(path) == {"swiftspec"}
    assert taken(path) - {"__file__"} <= set(swiftspec.__all__)


@by_notebook
def test_no_notebook_uses_the_command_line(path: Path) -> None:
    assert not any(name.startswith("swiftspec.cli") for name in imported(path))
    assert taken(path) - {"__file__"} <= set(swiftspec.__all__)


def test_a_plan_for_eight_gpus_takes_five_lines() -> None:
    """The first cell is all of it: cells are run in order, above."""
    first = source(code_cells(ROOT / "notebooks" / "capacity_planning_70b.ipynb")[0])
    assert "swiftspec.plan(" in first
    assert 'device="h800", num_devices=8' in first
    assert len([line for line in first.splitlines() if line.strip()]) <= 5


@by_notebook
def test_cells_run_in_order_and_print_what_is_stored(path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(path), start=1):
        text = io.StringIO()
        with redirect_stdout(text):
            exec(compile(source(cell), f"{path.name}, cell {number}", "exec"), namespace)
        assert differences(text.getvalue(), printed(cell)) == [], f"cell {number}"


@by_notebook
def test_cells_were_stored_as_they_were_run(path: Path) -> None:
    counts = [cell["execution_count"] for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    assert load(path)["metadata"]["kernelspec"]["name"] == "python3"


@by_notebook
def test_stored_outputs_are_figures_and_text_without_errors(path: Path) -> None:
    kinds = [output["output_type"] for output in outputs(path)]
    assert set(kinds) == {"stream", "execute_result"}
    assert {output["name"] for output in outputs(path) if output["output_type"] == "stream"} == {"stdout"}
    results = [output["data"] for output in outputs(path) if output["output_type"] == "execute_result"]
    assert len(results) >= 4
    assert all({"image/svg+xml", "text/plain"} == data.keys() for data in results)


@by_notebook
def test_nothing_tells_where_a_notebook_was_run(path: Path) -> None:
    text = "".join("".join(cell["source"]) for cell in load(path)["cells"])
    stored = json.dumps([output.get("text", output.get("data")) for output in outputs(path)])
    assert ABSOLUTE_PATH.findall(text + stored) == []


@by_notebook
def test_links_lead_to_files(path: Path) -> None:
    text = "".join("".join(cell["source"]) for cell in load(path)["cells"] if cell["cell_type"] == "markdown")
    local = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        ("305.1 tokens/s", "304.8   tokens/s", True),
        ("+0.6 %", "+0.8 %", True),
        ("305.1 tokens/s", "285.1 tokens/s", False),
        ("swiftspec 5+3", "swiftspec 4+4", False),
        ("swiftspec 5+3", "ssd 5+3", False),
        ("a", "a b", False),
    ],
)
def test_figures_may_differ_in_their_last_digits_alone(left: str, right: str, alike: bool) -> None:
    assert (differences(left, right) == []) is alike


def test_paths_of_a_machine_are_found() -> None:
    assert ABSOLUTE_PATH.search('File "/home/me/x.py"')
    assert not ABSOLUTE_PATH.search("https://host/home/x, swiftspec/usr/ and 3/4")
