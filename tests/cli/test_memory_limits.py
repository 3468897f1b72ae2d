"""The command line where memory is scarce: a sentence, whatever it is that does not fit."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.extra("engine")
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not there")
@pytest.mark.parametrize("megabytes", [200, 400])
def test_a_library_that_does_not_fit_is_told_in_a_sentence(megabytes: int, tmp_path: Path) -> None:
    models = ["--target", "demo/target", "--draft", "demo/draft"]
    command = [sys.executable, "-m", "swiftspec", "profile", *models, "--out", str(tmp_path / "profile.json")]
    limited = ["prlimit", f"--as={megabytes}000000", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("swiftspec: error: out of memory, or a library cannot be")
