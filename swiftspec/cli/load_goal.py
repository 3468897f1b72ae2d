"""Load to plan for, and its limits, from flags."""

import math
from pathlib import Path

from swiftspec.artifacts.load_goal import LoadOptions, usual_max_running
from swiftspec.planner.load import Load

__all__ = ["make_load"]


def make_load(
    workload: Path | None,
    *,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    percentile: float | None = None,
    most_requests: int | None = None,
    max_running: int | None = None,
    fleet: int | None = None,
    device: str | None = None,
    role: str = "all",
    transfer_ms: float | None = None,
) -> Load | None:
    """Load stated by flags; None without a workload.

    fleet: devices of a fleet, if there is one. device: what it is planned for, if that is not this machine. role:
    all, or decode for a pool whose prompts are read elsewhere.

    Raises
    ------
    ValueError
        Naming the flag.
    """
    given = {
        "--ttft-ms": ttft_ms,
        "--tpot-ms": tpot_ms,
        "--percentile": percentile,
        "--load-requests": most_requests,
        "--max-running": max_running,
        "--fleet": fleet,
        "--transfer-ms": transfer_ms,
    }
    for flag, value in given.items():
        if value is None:
            continue
        if workload is None:
            raise ValueError(f"{flag} is {value:g}; it needs --workload")
        if flag in ("--ttft-ms", "--tpot-ms") and not 0 < value < math.inf:
            raise ValueError(f"{flag} is {value:g}; expected a positive number of milliseconds")
    if role == "decode" and workload is None:
        raise ValueError("--role is decode; it needs --workload")
    if role != "decode" and transfer_ms is not None:
        raise ValueError(f"--transfer-ms is {transfer_ms:g}; it needs --role decode")
    if fleet is not None and max_running is None:
        max_running = usual_max_running(device or "cpu")
    return Load.read(
        workload,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        percentile=percentile,
        most_requests=most_requests,
        options=None if max_running is None else LoadOptions(max_running=max_running),
        transfer_s=(transfer_ms or 0.0) / 1e3 if role == "decode" else None,
    )
