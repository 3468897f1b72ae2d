"""`swiftspec profile`: measures a model pair on this machine's devices."""

from collections import Counter
from pathlib import Path
from typing import Any

from swiftspec import console
from swiftspec.commands.execution import num_devices_here
from swiftspec.commands.files import check_outputs, write_json
from swiftspec.commands.models import Pair, check_device, resolve_pair
from swiftspec.commands.wording import milliseconds
from swiftspec.profile import Profile, StepPoint
from swiftspec.timeline import Phase

__all__ = ["profile", "show_profile"]


def profile(
    *,
    target: str,
    draft: str,
    inflate: str | None,
    dtype: str,
    device: str,
    devices: int | None,
    out: Path,
    plot: Path | None = None,
    json_path: Path | None = None,
) -> Profile:
    """Measure, print and save."""
    check_outputs(out=out, plot=plot, json=json_path)
    check_device(device)
    num_devices = num_devices_here() if devices is None else devices
    if num_devices > num_devices_here():
        raise ValueError(f"--devices is {num_devices}; this machine offers {num_devices_here()}")
    pair = resolve_pair(target=target, draft=draft, inflate=inflate, dtype=dtype)
    measured = _measure(pair, device, num_devices)
    measured.save(out)
    show_profile(measured)
    console.say(f"\nSaved as {out}")
    if plot is not None:
        from swiftspec.plotting import save_figure, step_latency

        save_figure(plot, step_latency(measured))
    write_json(json_path, {"profile": str(out), "device": measured.origin.device, "steps": _summaries(measured)})
    return measured


def _measure(pair: Pair, device: str, num_devices: int) -> Profile:
    from swiftspec.profiler.steps import measure_profile

    with console.progress("profile") as progress:
        return measure_profile(
            target=pair.target, draft=pair.draft, device=device, num_devices=num_devices, progress=progress
        )


def show_profile(measured: Profile) -> None:
    """One line per step at one context, the middle one measured."""
    contexts = sorted({step.context for step in measured.steps if step.phase is not Phase.PREFILL})
    context = contexts[len(contexts) // 2] if contexts else 0
    steps = [step for step in measured.steps if step.phase is not Phase.PREFILL and step.context == context]
    rows = [
        (
            step.phase,
            str(step.degree),
            "busy" if step.peer_busy else "idle",
            "cold" if step.cold else "",
            str(step.rows),
            milliseconds(step.latency.median_s),
            milliseconds(step.quantiles_s[-1]),
            f"{step.rows / step.latency.median_s:.0f}",
        )
        for step in sorted(steps, key=_order)
    ]
    console.say(f"target  {measured.target}")
    console.say(f"draft   {measured.draft}")
    console.say(f"device  {measured.origin.device}")
    columns = ("forward", "degree", "peer", "", "rows", "median ms", "p97.5 ms", "tokens/s at most")
    console.table(f"Whole forwards behind a prefix of {context} tokens", columns, rows)
    origins = Counter(str(point.provenance) for point in (*measured.steps, *measured.host))
    samples = sum(point.num_samples for point in (*measured.steps, *measured.host))
    known = ", ".join(f"{count} {origin}" for origin, count in origins.items())
    console.say(f"\n{len(measured.steps)} steps and {len(measured.host)} host costs from {samples} samples: {known}")


def _order(step: StepPoint) -> tuple[str, int, int, bool, bool, int]:
    return step.role, list(Phase).index(step.phase), step.degree, step.peer_busy, step.cold, step.rows


def _summaries(measured: Profile) -> list[dict[str, Any]]:
    return [
        step.model_dump(mode="json", exclude={"quantiles_s"}) | {"median_s": step.latency.median_s}
        for step in measured.steps
    ]
