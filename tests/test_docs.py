"""Documents: few and short, with links that hold, a tree and tables that agree with the files."""

import re
from collections import Counter
from pathlib import Path

import pytest

from swiftspec.artifacts.report import Report
from swiftspec.policies import POLICIES
from tests.test_architecture import ROOT

DOCS, LOG = ROOT / "docs", ROOT / "docs/log"
PAGES = sorted(DOCS.glob("*.md"))
LOGS = sorted(set(LOG.glob("*.md")) - {LOG / "README.md"})
OTHERS = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "notebooks/README.md", "swiftspec/kernels/README.md")
]
MOST_BYTES = {"README.md": 6_500, "design.md": 15_000}
MOST_PAGES, MOST_BYTES_OF_A_PAGE = 15, 13_500


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-") for text in texts}


def links(path: Path) -> list[str]:
    """A document's links to files here, and to its own headings."""
    found = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    return [link for link in found if not link.startswith("http")]


def holds(path: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    to = path.parent / name if name else path
    return to.exists() and (not anchor or anchor in anchors(to))


def tree() -> list[str]:
    """Paths named by the tree of docs/architecture.md, relative to the root."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths: list[str] = []
    parent = ""
    for line in page.split("<!-- tree -->\n```\n")[1].split("\n```")[0].splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split(", ")
        indented = line.startswith(" ")
        parent = parent if indented else names[0]
        paths += [f"{parent}{name}" if indented else name for name in names]
    return paths


@pytest.mark.parametrize("path", [*OTHERS, *PAGES, LOG / "README.md", *LOGS], ids=named)
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert [link for link in links(path) if not holds(path, link)] == []


def test_a_link_to_a_heading_that_is_not_there_is_found() -> None:
    assert holds(ROOT / "README.md", "docs/design.md#dependencies")
    assert not holds(ROOT / "README.md", "docs/design.md#dependants")
    assert not holds(ROOT / "README.md", "docs/designs.md")


def test_there_are_few_pages_and_none_is_long() -> None:
    assert len(PAGES) <= MOST_PAGES
    sizes = {path.name: path.stat().st_size for path in (ROOT / "README.md", *PAGES)}
    assert {name: size for name, size in sizes.items() if size > MOST_BYTES.get(name, MOST_BYTES_OF_A_PAGE)} == {}


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    assert set(PAGES) - linked == set()


def test_every_log_has_a_date_and_one_line_in_the_index() -> None:
    assert [path.name for path in LOGS if not re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", path.name)] == []
    assert Counter(links(LOG / "README.md")) == Counter(path.name for path in LOGS)


def test_the_tree_names_only_what_is_on_disk() -> None:
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_the_tree_names_every_part_of_the_package() -> None:
    hidden = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
    on_disk = {f"swiftspec/{entry.name}" for entry in (ROOT / "swiftspec").iterdir() if entry.name not in hidden}
    assert on_disk - {path.rstrip("/") for path in tree()} == set()


@pytest.mark.parametrize(
    ("log", "recorded"),
    [
        ("2026-11-23-accuracy-of-policies.md", "demo-sapphire-rapids-2-cores"),
        ("2026-11-22-policies-on-zen-4-cores.md", "demo-zen4-2-cores"),
        ("2026-11-22-policies-on-zen-4-cores.md", "demo-zen4-2-cores-same-text"),
        ("2026-11-27-first-h100.md", "demo-h100-sxm"),
    ],
)
def test_tables_are_the_recorded_validation(log: str, recorded: str) -> None:
    _, _, after = (LOG / log).read_text(encoding="utf-8").partition(f"<!-- {recorded} -->")
    rows = [line.strip("| ").split(" | ") for line in after.partition("<!--")[0].strip().splitlines()[2:]]
    report = Report.load(ROOT / "swiftspec/profiles" / recorded / "report.json")
    assert rows == [
        [
            f"**{policy.policy}**" if policy.policy == report.chosen else policy.policy,
            policy.candidate.split()[1],
            f"{policy.predicted.tokens_per_s:.1f}",
            f"{policy.measured.tokens_per_s:.1f}",
            f"{policy.error.tokens_per_s:+.1%} ± {policy.error_margin:.1%}".replace("%", " %"),
            f"{policy.retimed_error:+.1%}".replace("%", " %"),
            f"{policy.predicted.tokens_per_round:.2f}",
            f"{policy.measured.tokens_per_round:.2f}",
        ]
        for policy in report.policies
    ]


def test_every_policy_is_described_and_drawn() -> None:
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(POLICIES)
    for name in POLICIES:
        assert f"![](policies/{name}.svg)" in page
        assert (DOCS / f"policies/{name}.svg").read_text().startswith("<?xml")
