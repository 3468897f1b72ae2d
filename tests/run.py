"""Run every test: what times nothing on all cores, then what times processes alone. One line counts both parts.

    python -m tests.run [arguments of pytest]

The second part runs whatever became of the first. Exit code 0 if every test passed, pytest's own otherwise; 5 if the
arguments chose no test at all.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

NO_TESTS = 5  # pytest's exit code where nothing was selected
PARTS: tuple[tuple[list[str], dict[str, str]], ...] = (
    (["--numprocesses", "auto", "--dist", "worksteal", "-m", "not bench and not alone"], {"OMP_NUM_THREADS": "1"}),
    (["-m", "not bench and alone"], {}),
)


def counted(junit: Path) -> Counter[str]:
    """Tests by outcome; nothing where pytest ended before it could write its report."""
    totals: Counter[str] = Counter()
    if junit.exists():
        for suite in ElementTree.parse(junit).iter("testsuite"):
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            totals["failed"] += count["failures"] + count["errors"]
            totals["skipped"] += count["skipped"]
            totals["passed"] += count["tests"] - count["failures"] - count["errors"] - count["skipped"]
    return totals


def main(arguments: list[str]) -> int:
    totals: Counter[str] = Counter()
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (options, variables) in enumerate(PARTS):
            junit = Path(folder, f"{number}.xml")
            command = [sys.executable, "-m", "pytest", *options, f"--junitxml={junit}", *arguments]
            codes.append(subprocess.run(command, env=os.environ | variables).returncode)
            totals += counted(junit)
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    code = max(failed, key=abs) if failed else min(codes)
    if code not in (0, 1):
        print(f"\npytest ended with exit codes {codes[0]} and {codes[1]}")
    print(f"\n{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
