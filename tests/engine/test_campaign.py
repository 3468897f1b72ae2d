import json
import subprocess
import sys
from pathlib import Path

from tests.engine.campaign import summary
from tests.engine.campaign_record import Record
from tests.engine.conftest import two_cores


@two_cores
def test_faults_of_all_kinds_leave_the_right_output_and_nothing_else(tmp_path: Path) -> None:
    """A short one, each fault of another kind, in a process of its own; `make campaign` runs three hundred faults."""
    command = [sys.executable, "-m", "tests.engine.campaign", "--faults", "8", "--seed", "2"]
    command += ["--out", str(tmp_path / "campaign.json")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]
    result = json.loads((tmp_path / "campaign.json").read_text())
    assert result["ok"] == result["faults"] == 10  # and a look at what is left in the end, in each world
    assert len({record["fault"] for record in result["records"]}) > 6


def test_the_summary_names_what_went_wrong() -> None:
    fine = Record(world="run", fault="kill draft", moment="start-up, 1.0 s", wrong=(), ending="0", losses=1, gap_s=0.5)
    late = Record(world="run", fault="kill draft", moment="mid-request, 0", wrong=("too late",), ending="3", gap_s=7.25)
    lines = summary([fine, late]).splitlines()
    assert lines[1].split() == ["run", "kill", "draft", "2", "1", "1", "7.25", "s", "0.00", "s", "0,", "3"]
    assert "too late" in lines[2]
    assert lines[3].startswith("2 faults, 1 as they should be")
