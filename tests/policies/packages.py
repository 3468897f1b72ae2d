"""Packages that offer policies, installed into folders of tests."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-policy.md"


def listing(name: str) -> str:
    """The file of this name that the page on writing a policy shows."""
    (text,) = re.findall(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```\n", PAGE.read_text("utf-8"), re.DOTALL)
    return str(text)


def install_of_page(source: Path, folder: Path) -> Path:
    """The page's package, by pip and without a network; the folder that it is installed in."""
    source.mkdir()
    for name in ("pyproject.toml", "settled_tree.py"):
        (source / name).write_text(listing(name), encoding="utf-8")
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def install_by_hand(folder: Path, package: str, entry_points: Mapping[str, str], **modules: str) -> None:
    """Write an installed package: its modules, its metadata, and its entry points in our group."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[swiftspec.policies]", *lines, ""]))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
