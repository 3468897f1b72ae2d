"""The shape of the repository, asserted: who may import whom, what is pure, what loads late, where code lives."""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.rooms import ALONE, ALONE_CALL, NEVERS, ROOMS, SHIPPED, WRITERS, allowed_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "swiftspec"
MAX_LINES = 400

HEAVY = frozenset({"torch", "transformers", "triton", "simpy", "matplotlib"})

# What turns a replayable role program into one that is not.
IMPURE = (
    *("torch", "simpy", "zmq", "time", "datetime", "random", "secrets", "numpy.random"),
    *("socket", "asyncio", "threading", "multiprocessing", "subprocess"),
)
PURE = ("swiftspec.policies", "swiftspec.scheduler")
BANNED_ROOTS = ("simulator", "kernels")
BANNED_NAMES = frozenset({"p", "q", "gamma"})  # papers swap them


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One imported dotted name; `deferred` when merely importing the module does not execute it."""

    target: str
    line: int
    deferred: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One source file: its dotted name (a package's own file has the package's name) and its text."""

    name: str
    text: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def imports(self) -> list[Import]:
        return _imports(self)


@cache
def _imports(module: Module) -> list[Import]:
    collector = _ImportCollector(module.name if module.is_package else module.name.rpartition(".")[0])
    collector.visit(module.tree)
    return collector.found


class _ImportCollector(ast.NodeVisitor):
    """Every import, function-level and relative ones and `import_module("literal")` included."""

    def __init__(self, package: str) -> None:
        self.found: list[Import] = []
        self._package = package
        self._deferred = 0

    def _add(self, target: str, node: ast.expr | ast.stmt) -> None:
        self.found.append(Import(target=target, line=node.lineno, deferred=self._deferred > 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parents = self._package.split(".")
        base = parents[: len(parents) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            self._add(f"{source}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
            self._add(str(node.args[0].value), node)
        self.generic_visit(node)

    def _visit_deferred(self, nodes: Sequence[ast.AST]) -> None:
        self._deferred += 1
        for node in nodes:
            self.visit(node)
        self._deferred -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_deferred(node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_deferred(node.body)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self._visit_deferred(node.body)
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)


def within(target: str, *packages: str) -> bool:
    """Whether the dotted name is one of the packages or lies inside one."""
    return any(target == package or target.startswith(f"{package}.") for package in packages)


def room_of(target: str) -> str:
    """The room of a swiftspec name, or the top-level name of a package that is not ours."""
    root, *rest = target.split(".")
    if root != PACKAGE:
        return root
    for depth in (2, 1):
        if (room := ".".join(rest[:depth])) in ROOMS:
            return room
    return "root"


def layering_violations(module: Module) -> Iterator[str]:
    """Imports of a room that this one may not know."""
    room = room_of(module.name)
    if room == "root" and module.name != PACKAGE:
        yield f"{module.name}: in no room; add it to the table on purpose"
    allowed = allowed_in(room)
    for found in module.imports:
        wanted = room_of(found.target)
        if wanted not in allowed and wanted not in sys.stdlib_module_names:
            yield f"{module.name}:{found.line}: {room} may not import {found.target}"


def never_violations(module: Module) -> Iterator[str]:
    """Imports that the rooms would allow, and that a module never needs."""
    for prefix, never in NEVERS:
        for found in module.imports:
            if module.name.startswith(prefix) and found.target.startswith(never):
                yield f"{module.name}:{found.line}: never imports {found.target}"


def stranger_violations(module: Module) -> Iterator[str]:
    """Imports of modules, and calls of methods, that only others may use."""
    for target, friends in ALONE:
        for found in module.imports:
            if within(found.target, target) and not within(module.name, *friends):
                yield f"{module.name}:{found.line}: {found.target} is imported by {' and '.join(friends)} alone"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and not within(module.name, *ALONE_CALL.get(node.attr, (PACKAGE,))):
            yield f"{module.name}:{node.lineno}: {node.attr} is called by {' and '.join(ALONE_CALL[node.attr])} alone"


def banned_root_violations(module: Module) -> Iterator[str]:
    for found in module.imports:
        if within(found.target, *BANNED_ROOTS):
            yield f"{module.name}:{found.line}: import {found.target}; say {PACKAGE}.{found.target}"


def purity_violations(module: Module) -> Iterator[str]:
    if not within(module.name, *PURE):
        return
    for found in module.imports:
        if within(found.target, *IMPURE):
            yield f"{module.name}:{found.line}: a policy or tree never touches {found.target}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            yield f"{module.name}:{node.lineno}: a policy or tree never touches numpy.random"


def print_violations(module: Module) -> Iterator[str]:
    if module.name == f"{PACKAGE}.cli.console":
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{module.name}:{node.lineno}: the library does not print"


def signature_violations(module: Module) -> Iterator[str]:
    """Public functions' parameters and public classes' annotated fields, by the names that papers swap."""

    def visit(body: Sequence[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from visit(node.body)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if node.target.id in BANNED_NAMES:
                    yield f"{module.name}:{node.lineno}: field {node.target.id}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_") and node.name not in ("__init__", "__call__"):
                    continue
                names = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
                for name in sorted(names & BANNED_NAMES):
                    yield f"{module.name}:{node.lineno}: {node.name}({name})"

    yield from visit(module.tree.body)


WRITES = re.compile(r"\.(write_text|write_bytes)\(|\bopen\([^)]*[\"'][wax]b?\+?[\"']|\bnp\.save\w*\(")
READS = re.compile(r"\bjson\.loads?\(|\bnp\.load\(")


def own_file_violations(module: Module) -> Iterator[str]:
    """Files are written by `write_output`, and what a user gives is read with bounds."""
    for number, line in enumerate(module.text.splitlines(), start=1):
        if WRITES.search(line) and not within(module.name, *WRITERS):
            yield f"{module.name}:{number}: writes a file by itself; there is swiftspec.files.writing"
        if READS.search(line) and not within(module.name, "swiftspec.files", *SHIPPED):
            yield f"{module.name}:{number}: reads a file by itself; there is swiftspec.files.reading"


def size_violations(module: Module) -> Iterator[str]:
    num_lines = module.text.count("\n")
    if num_lines > MAX_LINES:
        yield f"{module.name}: {num_lines} lines; at most {MAX_LINES}, one role per file"


def loaded_at_import(start: str, modules: Mapping[str, Module]) -> dict[str, str]:
    """Third-party packages that importing `start` loads, each with the module of ours that loads it."""
    loaded: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for target in (found.target for found in modules[name].imports if not found.deferred):
            parts = target.split(".")
            ours = {".".join(parts[: i + 1]) for i in range(len(parts))} & modules.keys()
            waiting.extend(ours)
            if parts[0] != PACKAGE and parts[0] not in sys.stdlib_module_names:
                loaded.setdefault(parts[0], name)
    return loaded


def heavy_start_violations(modules: Mapping[str, Module]) -> Iterator[str]:
    for name in sorted(modules):
        if room_of(name) in ("root", "cli", "cli.app", "cli.study", "__main__", "pytest_plugin"):
            for package, culprit in loaded_at_import(name, modules).items():
                if package in HEAVY:
                    yield f"{name}: importing it loads {package}, through {culprit}"


def modules_under(folder: str) -> dict[str, Module]:
    """Dotted name -> module, for every Python file below a folder of the repository."""
    modules: dict[str, Module] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name=name, text=path.read_text(encoding="utf-8"), is_package=is_package)
    return modules


LIBRARY = modules_under(PACKAGE)
AROUND = modules_under("tests") | modules_under("tools")

Check = Callable[[Module], Iterator[str]]
LIBRARY_CHECKS: tuple[Check, ...] = (
    layering_violations,
    never_violations,
    stranger_violations,
    banned_root_violations,
    purity_violations,
    print_violations,
    signature_violations,
    size_violations,
    own_file_violations,
)


@pytest.mark.parametrize("check", LIBRARY_CHECKS, ids=lambda check: check.__name__)
def test_library_has_no(check: Check) -> None:
    assert [line for module in LIBRARY.values() for line in check(module)] == []


@pytest.mark.parametrize("check", [banned_root_violations, size_violations], ids=lambda check: check.__name__)
def test_tests_and_tools_have_no(check: Check) -> None:
    assert [line for module in AROUND.values() for line in check(module)] == []


def test_tools_do_not_need_the_tests() -> None:
    """A machine with a GPU runs tools where the tests' own packages may be missing."""
    tools = [module for name, module in AROUND.items() if within(name, "tools")]
    wanted = [(module.name, found.target) for module in tools for found in module.imports]
    assert [(name, target) for name, target in wanted if within(target, "tests")] == []


def test_command_line_loads_nothing_heavy_when_imported() -> None:
    assert list(heavy_start_violations(LIBRARY)) == []


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (layering_violations, "swiftspec.engine.driver", "def run():\n    from swiftspec.simulator import driver"),
        (layering_violations, "swiftspec.engine.driver", "import transformers"),
        (layering_violations, "swiftspec.engine.launcher", "from ..planner import search"),
        (layering_violations, "swiftspec.engine.launcher", "importlib.import_module('swiftspec.profiler')"),
        (layering_violations, "swiftspec.engine.model.cpu.model", "from swiftspec.engine.process import placement"),
        (layering_violations, "swiftspec.engine.model.cpu.model", "from swiftspec.engine.channel.curve import Curve"),
        (layering_violations, "swiftspec.engine.process.worker_main", "from swiftspec.engine.launcher import Launcher"),
        (layering_violations, "swiftspec.policies.asynchronous.ssd", "from swiftspec.artifacts.plan import Plan"),
        (layering_violations, "swiftspec.planner.plan", "from swiftspec.engine.api import Engine"),
        (layering_violations, "swiftspec.profiler.steps", "from swiftspec.cli import console"),
        (layering_violations, "swiftspec.simulator.driver", "import torch.nn"),
        (layering_violations, "swiftspec.artifacts.plan", "from swiftspec.engine.model.cpu.model import CpuDecoder"),
        (layering_violations, "swiftspec.utils", ""),
        (layering_violations, "swiftspec.profiler.steps", "from tools.forwards import forward_record"),
        (never_violations, "swiftspec.cli.run", "from swiftspec.engine.launcher import Launcher"),
        (never_violations, "swiftspec.engine.driver", "from swiftspec.engine.channel.zmq_channel import Channel"),
        (never_violations, "swiftspec.engine.model.gpu.layers", "from swiftspec.engine.model.cpu.layers import Layer"),
        (never_violations, "swiftspec.engine.model.weights.loader", "from swiftspec.engine.parallel import tp_group"),
        (stranger_violations, "swiftspec.api.planning", "from swiftspec.simulator.load import serve_workload"),
        (stranger_violations, "swiftspec.planner.fleet.choice", "latencies.further_sequences(key)"),
        (stranger_violations, "swiftspec.planner.fleet.choice", "from swiftspec.planner.under_load import arrays"),
        (banned_root_violations, "swiftspec.engine.model.cpu.model", "import kernels.attention"),
        (banned_root_violations, "tests.test_x", "def test():\n    from simulator import driver"),
        (purity_violations, "swiftspec.policies.asynchronous.swiftspec", "import time"),
        (purity_violations, "swiftspec.policies.tree", "from numpy import random"),
        (purity_violations, "swiftspec.policies.tree", "import numpy as np\nrng = np.random.default_rng(0)"),
        (print_violations, "swiftspec.engine.driver", "def run():\n    print('here')"),
        (signature_violations, "swiftspec.policies.tree", "class Tree:\n    def grow(self, *, gamma): ..."),
        (signature_violations, "swiftspec.policies.tree", "class Node:\n    q: float"),
        (signature_violations, "swiftspec.policies.tree", "def accept(p, /): ..."),
        (size_violations, "swiftspec.policies.tree", "\n" * (MAX_LINES + 1)),
        (own_file_violations, "swiftspec.policies.tree", "path.write_text('x')"),
        (own_file_violations, "swiftspec.policies.tree", "with path.open('wb') as file: ..."),
        (own_file_violations, "swiftspec.policies.tree", "json.loads(path.read_text())"),
    ],
)
def test_checks_find_what_they_look_for(check: Check, name: str, text: str) -> None:
    assert len(list(check(Module(name=name, text=text)))) == 1


def test_rooms_know_lower_rooms_only() -> None:
    order = list(ROOMS)
    assert [
        (room, other)
        for room, allowed in ROOMS.items()
        for other in allowed & ROOMS.keys()
        if order.index(other) >= order.index(room)
    ] == []


def test_no_room_is_allowed_what_it_has_no_use_for() -> None:
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module in LIBRARY.values():
        used[room_of(module.name)] |= {room_of(found.target) for found in module.imports}
    assert {room: allowed - used[room] for room, allowed in ROOMS.items() if allowed - used[room]} == {}


def test_the_map_of_the_rooms_names_them_all() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"[\w.]+", page.split("## The rooms")[1].split("```")[1]))
    assert ROOMS.keys() - {"root", "__main__"} - drawn == set()


def test_heavy_start_is_found_through_other_modules() -> None:
    texts = {
        "swiftspec": "",
        "swiftspec.cli": "",
        "swiftspec.cli.app": "def main():\n    import torch\nfrom swiftspec.cli import plan",
        "swiftspec.cli.plan": "from swiftspec.planner import search",
        "swiftspec.planner": "import simpy",
    }
    modules = {name: Module(name=name, text=text, is_package=name in list(texts)[:2]) for name, text in texts.items()}
    assert list(heavy_start_violations(modules)) == [
        "swiftspec.cli.app: importing it loads simpy, through swiftspec.planner",
        "swiftspec.cli.plan: importing it loads simpy, through swiftspec.planner",
    ]


def test_imports_for_type_checking_are_deferred() -> None:
    module = Module(name="swiftspec.cli", text="if TYPE_CHECKING:\n    import torch\nelse:\n    import json")
    assert [(found.target, found.deferred) for found in module.imports] == [("torch", True), ("json", False)]


def test_kernels_is_a_namespace_folder() -> None:
    assert list((ROOT / PACKAGE / "kernels").rglob("__init__.py")) == []


def test_python_lives_in_the_package_the_tools_and_the_tests_only() -> None:
    folders = [entry for entry in ROOT.iterdir() if entry.is_dir() and not entry.is_symlink()]
    visible = [f for f in folders if not re.match(r"\.|build$|dist$", f.name) and not (f / "pyvenv.cfg").exists()]
    with_code = {folder.name for folder in visible if next(folder.rglob("*.py"), None)}
    assert (with_code, list(ROOT.glob("*.py"))) == ({PACKAGE, "tests", "tools"}, [])
