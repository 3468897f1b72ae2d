"""Run every test: what times nothing on all cores, then what times processes alone. One line counts both parts.

    python -m tests.run [arguments of pytest]

The second part runs whatever became of the first. Above the last line: the tests that cost most, by processor time.
Exit code 0 if every test passed, pytest's own otherwise; 5 if the arguments chose no test at all.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.cpu_times import CPU_S

NO_TESTS = 5  # pytest's exit code where nothing was selected
NUM_DEAREST = 10
SIDE_BY_SIDE, ALONE = "not bench and not alone", "not bench and alone"
PARTS: tuple[tuple[list[str], dict[str, str]], ...] = (
    (
        # A file's tests on one worker, which makes its fixtures once; files in the order of tests/conftest.py.
        ["-nauto", "--max-worker-restart=2", "--dist=loadfile", "--no-loadscope-reorder", "-m", SIDE_BY_SIDE],
        {"OMP_NUM_THREADS": "1"},
    ),
    (["-m", ALONE], {}),
)
# The tests start hundreds of interpreters, which compile all modules each time where they may not keep them.
WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a test and the fixtures made for it."""

    cpu_s: float
    seconds: float
    name: str


def counted(junit: Path) -> tuple[Counter[str], list[Cost]]:
    """Tests by outcome, and what each cost; nothing where pytest ended before it could write its report."""
    totals: Counter[str] = Counter()
    costs: list[Cost] = []
    if junit.exists():
        for suite in ElementTree.parse(junit).iter("testsuite"):
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            totals["failed"] += count["failures"] + count["errors"]
            totals["skipped"] += count["skipped"]
            totals["passed"] += count["tests"] - count["failures"] - count["errors"] - count["skipped"]
            costs += [cost_of(case) for case in suite.iter("testcase")]
    return totals, costs


def cost_of(case: ElementTree.Element) -> Cost:
    spent = [float(each.get("value", 0)) for each in case.iter("property") if each.get("name") == CPU_S]
    name = f"{case.get('classname')}::{case.get('name')}"
    return Cost(cpu_s=sum(spent), seconds=float(case.get("time", 0)), name=name)


def dearest(costs: list[Cost]) -> str:
    """A line for each of the tests that cost most."""
    first = sorted(costs, key=lambda cost: -cost.cpu_s)[:NUM_DEAREST]
    lines = [f"{cost.cpu_s:7.1f} {cost.seconds:7.1f}  {cost.name}" for cost in first]
    total = f"{sum(cost.cpu_s for cost in costs):7.1f} {sum(cost.seconds for cost in costs):7.1f}  all {len(costs)}"
    return "\n".join((f"  CPU s       s  the {len(first)} tests that cost most", *lines, total))


def main(arguments: list[str]) -> int:
    totals: Counter[str] = Counter()
    costs: list[Cost] = []
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (options, variables) in enumerate(PARTS):
            junit = Path(folder, f"{number}.xml")
            command = [sys.executable, "-m", "pytest", "-p", "tests.cpu_times", *options, f"--junitxml={junit}"]
            done = subprocess.run([*command, *arguments], env=os.environ | WITH_BYTECODE | variables)
            codes.append(done.returncode)
            outcomes, spent = counted(junit)
            totals += outcomes
            costs += spent
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    code = max(failed, key=abs) if failed else min(codes)
    if costs:
        print(f"\n{dearest(costs)}")
    if code not in (0, 1):
        print(f"\npytest ended with exit codes {codes[0]} and {codes[1]}")
    print(f"\n{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
