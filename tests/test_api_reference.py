"""The API reference: every public name is in it, says what its parameters are, and shows an example that runs."""

import doctest
import inspect
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import swiftspec
from swiftspec.artifacts.trace import Guesses, TracedPrompt
from swiftspec.engine.api import Chunk, Stats
from swiftspec.files.document import Document, ModelRef
from tests.api_reference import MODULES as REFERENCE
from tests.api_reference import build
from tests.cli.conftest import brief_profiles
from tests.engine.conftest import two_cores

pytestmark = pytest.mark.extra("engine")

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "swiftspec" / "profiles" / "demo-zen4-2-cores"
MODULES = {"figures"}  # public names that are modules
NAMES = sorted(set(swiftspec.__all__) - MODULES)
CLASSES = [name for name in NAMES if inspect.isclass(getattr(swiftspec, name))]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    build(folder)
    return folder


def documented(page: Path) -> dict[str, str]:
    """The docstring of every name of a page, as HTML."""
    pattern = r'<section id="([^"]+)"(.*?)(?=<section id=|</main>)'
    found = re.findall(pattern, page.read_text(encoding="utf-8"), re.DOTALL)
    texts = ((name, re.search(r'<div class="docstring">(.*?)</div>', text, re.DOTALL)) for name, text in found)
    return {name: match[1] for name, match in texts if match}


def test_every_public_name_is_on_the_packages_page(reference: Path) -> None:
    found = documented(reference / "swiftspec.html")
    assert [name for name in NAMES if name not in found] == []
    assert "<h6" in found["plan"]  # the sections of its docstring are headings, so they were understood


def test_every_module_that_is_listed_has_a_page_with_what_it_offers(reference: Path) -> None:
    for name in REFERENCE:
        page = reference / f"{name.replace('.', '/')}.html"
        assert page.exists(), name
        offered = set(getattr(sys.modules[name], "__all__", ())) - MODULES
        assert [n for n in offered if f'id="{n}"' not in page.read_text(encoding="utf-8")] == [], name
    assert "swiftspec/reports/figures.html" in (reference / "swiftspec.html").read_text(encoding="utf-8")


def test_the_reference_needs_nothing_from_elsewhere(reference: Path) -> None:
    for page in reference.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert loaded == [], page


def parameters(thing: Any) -> list[str]:
    """Parameters of a callable, or fields of a document."""
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        own = set(thing.model_fields) - (set(Document.model_fields) if issubclass(thing, Document) else set())
        return sorted(own)
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


def described(thing: Any) -> set[str]:
    """Names in the sections Parameters and Attributes of a numpydoc docstring."""
    text = inspect.getdoc(thing) or ""
    names: set[str] = set()
    for section in re.findall(
        r"^(?:Parameters|Attributes)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", text, re.DOTALL | re.MULTILINE
    ):
        for line in re.findall(r"^(?! )(.+)$", section, re.MULTILINE):
            names |= {name.strip().lstrip("*") for name in line.partition(" : ")[0].split(",")}
    return names


def is_plain(name: str) -> bool:
    return issubclass(getattr(swiftspec, name), str)  # an enumeration takes a value


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CLASSES or not is_plain(name)])
def test_every_parameter_is_described(name: str) -> None:
    thing = getattr(swiftspec, name)
    assert set(parameters(thing)) - described(thing) == set()


@pytest.mark.parametrize("thing", [*(getattr(swiftspec, name) for name in CLASSES), Chunk, Stats])
def test_every_method_has_a_docstring_and_describes_what_it_takes(thing: type) -> None:
    for name, member in vars(thing).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if name.startswith(("_", "model_")) or not inspect.isfunction(function):
            continue
        assert function.__doc__, f"{thing.__name__}.{name}"
        if len(parameters(function)) > 3:
            assert set(parameters(function)) - described(function) == set(), f"{thing.__name__}.{name}"


@pytest.mark.parametrize("name", NAMES)
def test_times_are_said_to_be_in_seconds(name: str) -> None:
    thing = getattr(swiftspec, name)
    times = [field for field in parameters(thing) if field.endswith("_s") and not field.endswith("per_s")]
    assert not times or "second" in (thing.__doc__ or "")


class AnyOutput(doctest.OutputChecker):
    """An example that shows no output may print: text of a model, for one."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def beginning(prompt: TracedPrompt) -> TracedPrompt:
    """Its first tokens, which are faster to simulate."""
    return replace(
        prompt,
        target_tokens=prompt.target_tokens[:16],
        ranks=prompt.ranks[:16],
        guesses={who: Guesses(*(column[:16] for column in guesses)) for who, guesses in prompt.guesses.items()},
        ended=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder in which the examples run: with the bundled pair's plan on a few prompts, and a quick profiler."""
    path = tmp_path_factory.mktemp("examples")
    planned = swiftspec.Planned.load(RECORDED / "plan.json")
    few = replace(planned.trace, prompts=tuple(beginning(prompt) for prompt in planned.trace.prompts[:2]))
    few.save(path / "trace.npz")
    planned.profile.save(path / "profile.json")
    planned = replace(planned, profile_path=path / "profile.json", trace_path=path / "trace.npz", trace=few)
    # The models as they are bundled, not inflated: the engine's examples then take seconds.
    bundled = {role: ModelRef(model=f"demo/{role}", dtype="float32") for role in ("target", "draft")}
    replace(planned, plan=planned.plan.model_copy(update=bundled)).save(path / "plan.json")
    (path / "report.json").write_bytes((RECORDED / "report.json").read_bytes())
    with brief_profiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.planner.for_device.NUM_PROMPTS", 2)
        patch.setattr("swiftspec.planner.for_device.NUM_NEW_TOKENS", 32)
        patch.chdir(path)
        yield path


@two_cores
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["swiftspec", *NAMES])
def test_examples_run(name: str) -> None:
    thing = swiftspec if name == "swiftspec" else getattr(swiftspec, name)
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(thing) or "", {"swiftspec": swiftspec}, name, os.path.basename(__file__), 0
    )
    assert example.examples, f"{name} shows no example"
    said: list[str] = []
    results = doctest.DocTestRunner(AnyOutput(), optionflags=OPTIONS).run(example, out=said.append)
    assert results.failed == 0, "".join(said)
