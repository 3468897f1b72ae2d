"""`swiftspec plan`: the simulator's choice of policy, shape and split, and what it rests on."""

from pathlib import Path

from swiftspec import console
from swiftspec.acceptance import AcceptanceTrace
from swiftspec.commands.basis import check_models, make_basis
from swiftspec.commands.files import check_outputs, write_json
from swiftspec.commands.models import resolve_pair
from swiftspec.commands.wording import PREDICTION_COLUMNS, milliseconds, prediction_row, provenance_shares, speed
from swiftspec.plan import Plan
from swiftspec.policies import POLICIES, Layout, make_policy
from swiftspec.profile import Profile

__all__ = ["plan", "search", "show_plan"]


def plan(
    *,
    target: str,
    draft: str,
    inflate: str | None,
    dtype: str | None,
    profile: Path,
    trace: Path,
    devices: int,
    policy: str,
    seed: int,
    jobs: int,
    out: Path,
    json_path: Path | None = None,
) -> Plan:
    """Search, print and save."""
    check_outputs(out=out, json=json_path)
    made = search(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        profile=profile,
        trace=trace,
        devices=devices,
        policy=policy,
        seed=seed,
        jobs=jobs,
        plan_path=out,
    )
    made.save(out)
    show_plan(made)
    console.say(f"\nSaved as {out}")
    write_json(json_path, {"plan": str(out)} | made.model_dump(mode="json"))
    return made


def search(
    *,
    target: str,
    draft: str,
    inflate: str | None,
    dtype: str | None,
    profile: Path,
    trace: Path,
    devices: int,
    policy: str,
    seed: int,
    jobs: int,
    plan_path: Path,
) -> Plan:
    """The plan that would be saved at `plan_path`."""
    wanted = None if policy == "auto" else policy
    _check_policy(wanted, devices)
    latencies, recorded = Profile.load(profile), AcceptanceTrace.load(trace)
    pair = resolve_pair(target=target, draft=draft, inflate=inflate, dtype=dtype or latencies.target.dtype)
    check_models(pair, profile=latencies, profile_path=profile, trace=recorded, trace_path=trace)
    from swiftspec.planner.search import make_plan

    with console.progress("plan") as progress:
        return make_plan(
            profile=latencies,
            profile_basis=make_basis(profile, plan_path=plan_path),
            trace=recorded,
            trace_basis=make_basis(trace, plan_path=plan_path),
            num_devices=devices,
            policy=wanted,
            seed=seed,
            num_jobs=jobs,
            progress=progress,
        )


def _check_policy(policy: str | None, devices: int) -> None:
    if policy is None:
        return
    if policy not in POLICIES:
        raise ValueError(f"--policy is {policy!r}; expected auto or one of {', '.join(POLICIES)}")
    if devices < 2 and make_policy(policy).layout is Layout.DISAGGREGATED:
        raise ValueError(
            f"--policy is {policy}, which is disaggregated: its roles need 2 devices, and --devices is {devices}"
        )


def show_plan(made: Plan) -> None:
    """The choice in a sentence, its rivals, and what the prediction rests on."""
    console.say(_sentence(made))
    console.table(
        "The best of every policy, as predicted",
        PREDICTION_COLUMNS,
        [prediction_row(candidate) for candidate in made.candidates.values()],
        num_text_columns=2,
    )
    if made.ties:
        console.say(f"\nTied within the noise, and less simple: {'; '.join(made.ties)}")
    metrics = made.chosen.prediction.metrics
    console.say(
        f"\nSpeed of light of the choice: {speed(metrics.speed_of_light)} tokens/s, "
        f"{metrics.figures.tokens_per_round:.2f} tokens per verification of {milliseconds(metrics.verify_s)} ms"
    )
    console.say(f"Predicted time rests on: {provenance_shares(made.chosen.prediction.provenance)}")
    console.say(f"Simulated {made.num_simulated} candidates on {made.num_devices} devices")
    for reason, count in made.rejected.items():
        console.say(f"Rejected {count}: {reason}")
    console.say(f"Based on {made.profile.path} and {made.trace.path}, for {made.target}")


def _sentence(made: Plan) -> str:
    chosen = made.chosen
    figures = chosen.prediction.metrics.figures
    text = f"Chosen: {chosen.describe()}, for {speed(figures.tokens_per_s)} tokens/s predicted"
    if not made.alternatives:
        return f"{text}; no other policy was feasible or asked for."
    rival = max(made.alternatives, key=lambda other: other.prediction.metrics.figures.tokens_per_s)
    other = rival.prediction.metrics.figures
    ratio = figures.tokens_per_s / other.tokens_per_s
    return (
        f"{text}, {ratio:.2f} times {rival.policy}{', the next best' if ratio >= 1 else ''}: "
        f"a round of {milliseconds(figures.round_s.median)} ms brings {figures.tokens_per_round:.2f} tokens, "
        f"against {milliseconds(other.round_s.median)} ms and {other.tokens_per_round:.2f}."
    )
