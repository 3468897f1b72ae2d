"""`swiftspec study blockllm`: chains of blocks simulated, and held against closed forms; docs/studies.md."""

from collections.abc import Mapping, Sequence

import numpy as np

from swiftspec.cli import console
from swiftspec.costmodel.compose import RoleModel
from swiftspec.costmodel.device_profile import device_profile
from swiftspec.models.published import known_model
from swiftspec.policies.effects import Role
from swiftspec.studies.blockllm.closed_forms import break_even_accuracy, md1_wait_s
from swiftspec.studies.blockllm.deployment import Block, Deployment, Links, StepTime, Surrogate
from swiftspec.studies.blockllm.layouts import ChainBlock, Costs, chains_of, per_model, shared_blocks
from swiftspec.studies.blockllm.queueing import Cache
from swiftspec.studies.blockllm.requests import BlockRun, TenantRequest, requests_of
from swiftspec.studies.blockllm.simulation import simulate_blocks
from swiftspec.studies.tenants.directories import read_zoo
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from swiftspec.workload import Arrivals, Lengths, RequestClass, make_workload

_ACCURACIES = tuple(np.linspace(0.70, 0.98, 8).tolist())
_RATES, _SECONDS = (20, 40, 60, 80), 40
_SHARES = (0.7, 0.1, 0.1, 0.1)
_PUBLISHED = "published: p95 -33.5 %, utilisation +20.1 %, for loads and models that are not"


def blockllm(directories: Sequence[str], only: str | None) -> None:
    """Simulate and print: all tables, or one of them.

    directories: tenants, the base first, whose chains are those of the last table; without any, 24 of 32 layers are
    shared.
    """
    checks = {"surrogates": _surrogates, "waits": _waits, "kv": _kv, "crowding": _crowding}
    for name, check in checks.items():
        if only in (None, name):
            check()
    if only in (None, "load"):
        _load(chains_of(read_zoo(directories).zoo) if directories else _usual_chains())


def break_even(*, block_s: float, cost_share: float, behind_s: float, num_tokens: int = 4000) -> float:
    """Accuracy at which a simulated surrogate saves nothing: where the line through its gains crosses zero."""
    gains_s = [
        block_s + behind_s - _token_s(accuracy, block_s, cost_share, behind_s, num_tokens) for accuracy in _ACCURACIES
    ]
    slope, gain_at_0 = np.polyfit(_ACCURACIES, gains_s, 1)
    return float(-gain_at_0 / slope)


def _token_s(accuracy: float, block_s: float, cost_share: float, behind_s: float, num_tokens: int) -> float:
    """Mean time of a token of one request, alone."""
    deployment = Deployment(
        blocks=(_timed("first", block_s), _timed("behind", behind_s)),
        groups={"a": ("first",), "b": ("behind",), "c": ()},
        chains={"t": ("first", "behind")},
        surrogates=(Surrogate(block="first", group="c", cost_share=cost_share, accuracy=accuracy),),
    )
    run = simulate_blocks(deployment, [TenantRequest(tenant="t", output_tokens=num_tokens + 1)])
    return (run.served[0].ended_s - run.served[0].tokens_s[0]) / num_tokens


def _timed(name: str, seconds: float, *, max_batch: int = 64) -> Block:
    return Block(name=name, step=StepTime(fixed_s=seconds, row_s=0.0), max_batch=max_batch)


def _surrogates() -> None:
    rows = []
    for block_s, behind_s in ((0.004, 0.008), (0.002, 0.010), (0.004, 0.002)):
        for cost_share in (0.1, 0.3, 0.5, 0.7):
            expected = break_even_accuracy(block_s=block_s, cost_share=cost_share, behind_s=behind_s)
            found = break_even(block_s=block_s, cost_share=cost_share, behind_s=behind_s)
            rows.append(
                (f"{1e3 * block_s:g}", f"{1e3 * behind_s:g}", f"{cost_share:g}", f"{expected:.3f}", f"{found:.3f}")
            )
    columns = ("block ms", "behind ms", "cost share", "closed form", "simulated")
    console.table("(a) Accuracy at which a surrogate breaks even", columns, rows, num_text_columns=0)


def md1_mean_wait_s(load: float, *, service_s: float = 0.01, num_requests: int = 20_000, seed: int = 0) -> float:
    """Simulated mean wait of Poisson arrivals before one block that takes them one by one."""
    gaps_s = np.random.default_rng(seed).exponential(service_s / load, num_requests)
    deployment = Deployment(
        blocks=(_timed("only", service_s, max_batch=1),), groups={"a": ("only",)}, chains={"t": ("only",)}
    )
    requests = [TenantRequest(tenant="t", arrival_s=at_s) for at_s in np.cumsum(gaps_s).tolist()]
    return simulate_blocks(deployment, requests).e2e_s.mean - service_s


def _waits() -> None:
    rows = [
        (f"{load:g}", f"{1e3 * md1_wait_s(load / 0.01, 0.01):.2f}", f"{1e3 * md1_mean_wait_s(load):.2f}")
        for load in (0.3, 0.5, 0.8)
    ]
    columns = ("load", "closed form", "simulated")
    console.table("(b) Wait before a block of 10 ms, M/D/1, in ms", columns, rows, num_text_columns=0)


def burst(
    num_requests: int, *, context: int, step: StepTime, kv_bytes_per_token: float, links: Links
) -> list[tuple[Cache, ...]]:
    """Choices of requests that come at once, whose KV is all on one of two replicas."""
    block = Block(name="only", step=step, max_batch=1, kv_bytes_per_token=kv_bytes_per_token)
    deployment = Deployment(
        blocks=(block,), groups={"a": ("only",), "b": ("only",)}, chains={"t": ("only",)}, links=links
    )
    request = TenantRequest(tenant="t", cached_tokens=context, cached_at="a")
    return [tuple(each.choices) for each in simulate_blocks(deployment, [request] * num_requests).served]


def _kv() -> None:
    step = StepTime(fixed_s=0.010, row_s=80e-6)
    rows = []
    for context in (200, 1000):
        links = Links(latency_s=0.005, bytes_per_s=131_072 * 1000 / 0.030)
        found = burst(12, context=context, step=step, kv_bytes_per_token=131_072, links=links)
        words = {Cache.KEEP: "go", Cache.MOVE: "move", Cache.RECOMPUTE: "again"}
        move_ms, again_ms = 1e3 * links.move_s(context * 131_072), 1e3 * step.row_s * context
        rows.append((str(context), f"{move_ms:.0f}", f"{again_ms:.0f}", " ".join(words[each[0]] for each in found)))
    columns = ("context", "move ms", "recompute ms", "a burst of 12, in order")
    console.table(
        "(c) KV of all on one of two replicas, steps of 10 ms", columns, rows, num_text_columns=0, last_is_text=True
    )


def _crowding() -> None:
    """The choice is the best for one request; under load each recomputation is in the way of the others."""
    chains, costs = _usual_chains(), _costs()
    requests = _requests(list(chains), _SHARES, rate=20, seconds=10)
    rows = []
    for gigabytes_per_s in (100, 10, 1):
        links = Links(latency_s=costs.links.latency_s, bytes_per_s=gigabytes_per_s * 1e9)
        deployment = shared_blocks(chains, costs._replace(links=links), num_devices=len(chains))
        for stays in (False, True):
            run = simulate_blocks(deployment, requests, stays=stays)
            counts = (str(run.choices.get(cache, 0)) for cache in Cache)
            rule = "where its KV is" if stays else "where it is quickest"
            rows.append((f"{gigabytes_per_s}", rule, f"{run.e2e_s.p50:.2f}", f"{run.e2e_s.p95:.2f}", *counts))
    columns = ("link GB/s", "a request goes", "p50 s", "p95 s", "went to it", "moved", "recomputed")
    console.table("(c) All blocks on all of 4 devices, 20 requests/s for 10 s", columns, rows, num_text_columns=2)


def _usual_chains() -> dict[str, tuple[ChainBlock, ...]]:
    return {
        f"t{number}": (ChainBlock("shared", 24 / 32), ChainBlock(f"own {number}", 8 / 32))
        for number in range(len(_SHARES))
    }


def _costs() -> Costs:
    """Llama-3-8B on an A100: a token's step, and what each further row costs in a prompt of 1,024."""
    spec = known_model("llama-3-8b").spec
    profile = device_profile(
        RoleModel(model=known_model("llama-3-8b"), quant="bf16"),
        RoleModel(model=known_model("llama-3.2-1b"), quant="bf16"),
        device="a100-sxm",
        num_devices=1,
        max_context=2048,
    )

    def seconds(phase: Phase, rows: int, context: int) -> float:
        return profile.step(StepKey(Role.TARGET, phase, 1, rows, context)).mean_s

    token_s = seconds(Phase.VERIFY, 1, 512)
    return Costs(
        step=StepTime(fixed_s=token_s, row_s=(seconds(Phase.PREFILL, 1024, 0) - token_s) / 1023),
        overhead_s=0.0003,
        kv_bytes_per_token=spec.kv_bytes_per_token("bf16"),
        links=Links(latency_s=20e-6, bytes_per_s=100e9, row_bytes=2 * spec.hidden_size),
    )


def _load(chains: Mapping[str, tuple[ChainBlock, ...]]) -> None:
    costs, names = _costs(), list(chains)
    shares = _SHARES if len(names) == len(_SHARES) else [1 / rank for rank in range(1, len(names) + 1)]
    console.paragraph(
        f"A step of n rows takes {1e3 * costs.step.fixed_s:.1f} + {1e3 * costs.step.row_s:.3f} n ms, and "
        f"{1e3 * costs.overhead_s:g} ms more for each block; {len(names)} tenants on as many devices have shares of "
        f"{', '.join(f'{share / sum(shares):.2f}' for share in shares)} of the requests, prompts of 256 and outputs of "
        f"64 tokens on average (log-normal, CV 0.6), Poisson arrivals for {_SECONDS} s; links of 100 GB/s."
    )
    layouts = {
        "whole models": per_model(names, costs),
        "shared blocks on all but one": shared_blocks(
            chains, costs, num_devices=len(names), num_for_shared=len(names) - 1
        ),
        "all blocks on all": shared_blocks(chains, costs, num_devices=len(names)),
        "adapters: all layers shared": shared_blocks(
            {name: (ChainBlock("shared", 1.0),) for name in names}, costs, num_devices=len(names)
        ),
    }
    rows = []
    for rate in _RATES:
        baseline: BlockRun | None = None
        for layout, deployment in layouts.items():
            run = simulate_blocks(deployment, _requests(names, shares, rate))
            baseline = baseline or run
            rows.append((str(rate), layout, *_cells(run, baseline)))
    columns = ("requests/s", "layout", "p50 s", "p95 s", "p95 over whole", "utilisation", "tokens/s", "rows a step")
    console.table("(d) Shared blocks against whole models", columns, rows, num_text_columns=2)
    console.paragraph(f"  {_PUBLISHED}")


def _requests(
    names: Sequence[str], shares: Sequence[float], rate: float, seconds: float = _SECONDS
) -> list[TenantRequest]:
    classes = [RequestClass(name=name, share=share / sum(shares)) for name, share in zip(names, shares, strict=True)]
    return requests_of(
        make_workload(
            Arrivals.parse(f"poisson:{rate}", field="arrivals"),
            num_requests=int(rate * seconds),
            prompt_tokens=Lengths.parse("lognormal:256:0.6", field="prompt_tokens"),
            output_tokens=Lengths.parse("lognormal:64:0.6", field="output_tokens"),
            classes=classes,
        )
    )


def _cells(run: BlockRun, baseline: BlockRun) -> tuple[str, ...]:
    e2e_s = run.e2e_s
    return (
        f"{e2e_s.p50:.2f}",
        f"{e2e_s.p95:.2f}",
        f"{e2e_s.p95 / baseline.e2e_s.p95 - 1:+.1%}",
        f"{run.utilisation:.1%}",
        f"{run.tokens_per_s:.0f}",
        f"{run.rows_per_step:.1f}",
    )
