"""No module needs one that needs it, not even later: whoever reads a file may stop at what it imports."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.test_architecture import LIBRARY, Module


def needed(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """Modules of ours that it imports, wherever in its text."""
    found = set()
    for each in module.imports:
        parts = each.target.split(".")
        names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        found.add(next((name for name in names if name in modules), module.name))
    return found - {module.name}


def test_no_module_needs_one_that_needs_it() -> None:
    TopologicalSorter({name: needed(module, LIBRARY) for name, module in LIBRARY.items()}).prepare()


def test_a_circle_is_found_behind_a_deferred_import() -> None:
    texts = {"swiftspec.a": "from swiftspec.b import x", "swiftspec.b": "def f():\n    from swiftspec import a"}
    modules = {name: Module(name=name, text=text) for name, text in texts.items()}
    with pytest.raises(CycleError):
        TopologicalSorter({name: needed(module, modules) for name, module in modules.items()}).prepare()
