"""The planner's tests without any extra, on the oldest versions that pyproject.toml allows: `make lean`.

    python -m tests.lean [--work build/lean] [arguments of pytest]

Builds an environment of its own from pyproject.toml and constraints.txt; needs nothing but Python and pip's index.
Exit code: pytest's, or pip's.
"""

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders of tests that an installation without extras passes; tests that need one say so and are skipped.
TESTS = (
    *("acceptance", "artifacts", "cli", "costmodel", "devices", "engines", "export", "external", "files", "loadtest"),
    *("models", "planner", "policies", "reports", "scheduler", "simulator", "studies", "validation", "workload"),
    "test_architecture.py",
)
TEST_PACKAGES = ("hypothesis", "pytest", "pytest-benchmark", "pytest-xdist")
OPTIONS = ("-q", "-nauto", "--dist=loadfile", "-m", "not bench and not alone")


def floors() -> dict[str, str]:
    """Oldest version of every package that planning needs. ValueError if a requirement has no such version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = {}
    for requirement in project["dependencies"]:
        bound = re.fullmatch(r"([a-z-]+)>=([0-9.]+)", requirement)
        if bound is None:
            raise ValueError(f"pyproject.toml: dependency is {requirement!r}; expected NAME>=VERSION")
        oldest[bound[1]] = bound[2]
    return oldest


def pinned(names: tuple[str, ...]) -> list[str]:
    """Lines of constraints.txt for these packages."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.partition("==")[0] in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build/lean", help="the environment")
    chosen, arguments = parser.parse_known_args()
    venv.create(chosen.work, with_pip=True, clear=True)
    python = str(chosen.work / "bin/python")
    oldest = [f"{name}=={version}" for name, version in floors().items()]
    for packages in ([*oldest, *pinned(TEST_PACKAGES)], ["--no-deps", str(ROOT)]):
        installed = subprocess.run([python, "-m", "pip", "install", "--quiet", *packages])
        if installed.returncode:
            return installed.returncode
    # Python 3.11 puts it into every environment; a package that needs it has to say so.
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True)
    tests = [f"tests/{name}" for name in TESTS]
    return subprocess.run([python, "-m", "pytest", *OPTIONS, *(arguments or tests)], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
