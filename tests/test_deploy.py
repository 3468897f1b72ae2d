"""The container file and the Kubernetes file of deploy/: what linters say, and that they agree with each other."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swiftspec.version import __version__

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def lint(name: str, *arguments: str) -> None:
    """Run a linter beside this Python, or on the PATH; it must find nothing."""
    linter = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if linter is None:
        pytest.skip(f"{name} is not installed")
    found = subprocess.run([linter, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


def deployed() -> tuple[Any, Any]:
    """The pod that Kubernetes runs, and its container."""
    yaml = pytest.importorskip("yaml")
    with (DEPLOY / "kubernetes.yaml").open(encoding="utf-8") as file:
        pod = next(yaml.safe_load_all(file))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_a_linter_finds_nothing_in_the_container_file() -> None:
    lint("hadolint", "--failure-threshold", "style", str(DEPLOY / "Containerfile"))


def test_the_kubernetes_file_has_only_fields_that_kubernetes_knows() -> None:
    lint("kubernetes-validate", "--strict", str(DEPLOY / "kubernetes.yaml"))


def test_the_container_has_no_rights_that_it_does_not_need() -> None:
    pod, container = deployed()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_kubernetes_runs_the_image_as_the_container_file_builds_it() -> None:
    pod, container = deployed()
    image = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert container["image"] == f"swiftspec:{__version__}"
    assert f"--tag {container['image']} " in image
    user = pod["securityContext"]["runAsUser"]
    assert f"useradd --uid {user} " in image
    assert f"USER {user}:{pod['securityContext']['runAsGroup']}\n" in image
    home = re.search(r"ENV HOME=(\S+)", image)
    assert home is not None
    writable = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in writable}
    assert mounted == {home[1], "/tmp"}


def test_a_pod_has_time_to_end_its_requests() -> None:
    pod, container = deployed()
    before_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    arguments = container["args"]
    drain_s = int(arguments[arguments.index("--set") + 1].removeprefix("drain_s="))
    assert pod["terminationGracePeriodSeconds"] > before_s + drain_s
