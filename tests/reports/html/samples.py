"""A plan for eight accelerators that are not local: composed steps, and every optional field filled."""

from swiftspec.artifacts.metrics import Figures, Metrics
from swiftspec.artifacts.plan import (
    Acceptance,
    Basis,
    Candidate,
    Explored,
    Goal,
    GroupMemory,
    Objective,
    Plan,
    Prediction,
    Sensitivity,
)
from swiftspec.artifacts.profile import Collective, Profile, StepPoint
from swiftspec.files.document import ModelRef, Spread
from swiftspec.policies.base import Value
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Part, Provenance
from swiftspec.timing.timeline import Phase, Timeline
from tests.cli.samples import ORIGIN, parallel_timeline

TARGET = ModelRef(model="llama-3-70b", dtype="bf16")
DRAFT = ModelRef(model="llama-3.2-3b", dtype="bf16")
CHOSEN_TOKENS_PER_S = 347.2

_VERIFY = {
    ("qkv", Provenance.PUBLISHED): 1.4e-3,
    ("attention", Provenance.MEASURED): 0.9e-3,
    ("output", Provenance.PUBLISHED): 0.8e-3,
    ("all_reduce", Provenance.INTERPOLATED): 1.1e-3,
    ("gate_up", Provenance.PUBLISHED): 2.6e-3,
    ("down", Provenance.PUBLISHED): 1.3e-3,
    ("head", Provenance.ROOFLINE): 0.2e-3,
    ("launch_gap", Provenance.ASSUMED): 0.1e-3,
}
_EXPAND = {kind: seconds / 8 for kind, seconds in _VERIFY.items()}


def composed_profile() -> Profile:
    """Steps of both roles at every degree up to 8, each the sum of the same parts over the degree."""
    steps = []
    for degree in range(1, 9):
        for role, phase, parts in ((Role.TARGET, Phase.VERIFY, _VERIFY), (Role.DRAFT, Phase.EXPAND, _EXPAND)):
            for kind in (phase, Phase.PREFILL):
                steps += [_step(role, kind, degree, rows, context, parts) for rows in (1, 16) for context in (0, 1024)]
    return Profile(
        origin=ORIGIN,
        device="h800-sxm",
        num_devices=8,
        target=TARGET,
        draft=DRAFT,
        steps=tuple(steps),
        host=(),
        peers_interfere=False,
        collectives=collectives(),
        sources=("op tables of an h100-sxm, SHA-256 cccc", "published forwards"),
    )


def _step(
    role: Role, phase: Phase, degree: int, rows: int, context: int, parts: dict[tuple[str, Provenance], float]
) -> StepPoint:
    scale = (1 + 0.01 * rows + context / 8192) / degree
    total_s = sum(parts.values()) * scale
    return StepPoint(
        role=role,
        phase=phase,
        degree=degree,
        peer_busy=False,
        rows=rows,
        context=context,
        quantiles_s=(total_s,) * NUM_QUANTILES,
        num_samples=1,
        provenance=Provenance.ASSUMED,
        parts=tuple(
            Part(name=name, seconds=seconds * scale, provenance=provenance)
            for (name, provenance), seconds in parts.items()
        ),
    )


def collectives() -> tuple[Collective, ...]:
    return tuple(
        Collective(
            role=role, degree=4, implementation="fused", seconds={"fused": 6.1e-6, "nccl": 18.4e-6, "one-shot": 9e-6}
        )
        for role in Role
    )


def candidate(
    policy: str, tokens_per_s: float, *, target: int, draft: int = 0, weak: float = 0.05, **shape: Value
) -> Candidate:
    """On the first devices; `weak` is the share of its time that is assumed."""
    metrics = Metrics(
        figures=Figures(tokens_per_s=tokens_per_s, round_s=Spread(median=9.3e-3, p95=11.8e-3), tokens_per_round=3.4),
        num_tokens=4096,
        rounds=1205,
        ttft_s=0.061,
        tpot_s=1 / tokens_per_s,
        overlap_fraction=0.9,
        verify_s=8.4e-3,
        tail_s=Spread(median=4.1e-5, p95=9e-5),
        hit_fraction=0.83,
        mean_round_s=9.5e-3,
        target_busy=0.88,
        draft_busy=0.81,
        wasted_draft=0.9,
    )
    groups: dict[Role, tuple[int, ...]] = {Role.TARGET: tuple(range(target))}
    if draft:
        groups[Role.DRAFT] = tuple(range(target, target + draft))
    prediction = Prediction(
        metrics=metrics,
        tokens_per_s_low=0.95 * tokens_per_s,
        tokens_per_s_high=1.05 * tokens_per_s,
        provenance={Provenance.PUBLISHED: 0.7 - weak, Provenance.INTERPOLATED: 0.3, Provenance.ASSUMED: weak},
    )
    return Candidate(policy=policy, shape=shape, groups=groups, prediction=prediction)


def rich_plan(*, weak: float = 0.05) -> Plan:
    """Every section of the report has something to show. weak: share of the chosen candidate's time that is assumed."""
    chosen = candidate("swiftspec", CHOSEN_TOKENS_PER_S, target=4, draft=4, weak=weak, verify_rows=16, expand_rows=8)
    return Plan(
        origin=ORIGIN,
        device="h800-sxm",
        num_devices=8,
        target=TARGET,
        draft=DRAFT,
        profile=Basis(path="profile.json", sha256="a" * 64),
        trace=Basis(path="trace.npz", sha256="b" * 64),
        max_new_tokens=256,
        chosen=chosen,
        alternatives=(
            candidate("serial_tree", 291.3, target=8, verify_rows=16),
            candidate("ssd", 287.9, target=6, draft=2),
            candidate("autoregressive", 118.6, target=8),
        ),
        ties=("swiftspec 5+3 (verify_rows=16, expand_rows=8)",),
        num_simulated=214,
        rejected={"swiftspec: 31.2 GB short on each device of the target": 12, "easyspec: <not> recorded": 4},
        goal=Goal(objective=Objective.TPOT, tpot_s=5e-3, max_devices=8),
        acceptance=Acceptance(
            basis="Fitted to the published serial lengths of six data sets.", provenance=Provenance.PUBLISHED
        ),
        quantisation={Role.TARGET: "int4", Role.DRAFT: "bf16"},
        collectives=collectives(),
        memory=(_memory(Role.TARGET, range(4), 10.1e9, 0.6e9), _memory(Role.DRAFT, range(4, 8), 1.6e9, 0.2e9)),
        explored=tuple(_explored()),
        sensitivities=(
            Sensitivity(
                change="acceptance -10 %",
                tokens_per_s=318.1,
                best="swiftspec 4+4 (verify_rows=16, expand_rows=8)",
                best_tokens_per_s=318.1,
                changes_choice=False,
            ),
            Sensitivity(
                change="context x4",
                tokens_per_s=241.7,
                best="swiftspec 6+2 (verify_rows=16, expand_rows=8)",
                best_tokens_per_s=263.9,
                changes_choice=True,
            ),
        ),
    )


def _memory(role: Role, devices: range, weights_bytes: float, kv_bytes: float) -> GroupMemory:
    return GroupMemory(
        devices=tuple(devices),
        weights_bytes={role: int(weights_bytes)},
        kv_bytes={role: int(kv_bytes)},
        reserve_bytes=2 * 10**9,
        usable_bytes=72 * 10**9,
    )


def _explored() -> list[Explored]:
    """swiftspec is fastest on 4+4, the others on as many devices as there are."""
    cells = []
    for total in range(2, 9):
        for target in range(1, total):
            speed = CHOSEN_TOKENS_PER_S * (total / 8) ** 0.7 * (1 - 0.04 * abs(target - total / 2))
            cells.append(_cell("swiftspec", f"{target}+{total - target}", total, speed))
            cells.append(_cell("ssd", f"{target}+{total - target}", total, 0.8 * speed))
    for total in range(1, 9):
        cells.append(_cell("serial_tree", str(total), total, 291.3 * (total / 8) ** 0.6))
        cells.append(_cell("autoregressive", str(total), total, 118.6 * (total / 8) ** 0.6))
    return cells


def _cell(policy: str, split: str, num_devices: int, tokens_per_s: float) -> Explored:
    return Explored(
        policy=policy,
        split=split,
        num_devices=num_devices,
        tokens_per_s=round(tokens_per_s, 3),
        tpot_s=1 / tokens_per_s,
        num_options=6,
    )


def timeline(*, num_rounds: int = 30) -> Timeline:
    return parallel_timeline("gsm8k-7", num_rounds=num_rounds)
