import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.engine.processes import gone_within

PARENT = """
import subprocess, sys, time
child = '''
import signal, sys, time
from swiftspec.parent_death import signal_on_parent_death
signal_on_parent_death(signal.SIGKILL)
print("armed", flush=True)
time.sleep(60)
'''
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""

ADOPTS = """
import os, subprocess, sys
from swiftspec.parent_death import adopt_orphans
adopt_orphans()
subprocess.run(["sh", "-c", "sleep 0.3 & echo $! > " + sys.argv[1]], check=True)
pid, status = os.wait()
assert pid == int(open(sys.argv[1]).read()), pid
"""


def test_the_kernel_ends_a_child_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        os.kill(child, signal.SIGSTOP)  # stopped: nothing in it can run any more
        parent.kill()
        parent.wait()
        assert gone_within([child], 30.0)


def test_orphans_can_be_adopted(tmp_path: Path) -> None:
    before_s = time.monotonic()
    subprocess.run([sys.executable, "-c", ADOPTS, str(tmp_path / "pid")], check=True, timeout=30)
    assert time.monotonic() - before_s > 0.2
