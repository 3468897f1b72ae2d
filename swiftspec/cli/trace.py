"""`swiftspec trace`: records how the draft ranks the target's own output."""

from typing import Any

from swiftspec.api import NUM_CANDIDATES
from swiftspec.api import trace as record
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.inflate import save_expanded
from swiftspec.cli.outputs import check_files, draw, saved, write_json
from swiftspec.cli.verbs.data import TraceFlags
from swiftspec.costmodel.measured_routing import MeasuredRouting, measured_routing
from swiftspec.reports.formatting import percent

_SHOWN_RANKS = 8
_SHOWN_WINDOWS = (1, 2, 4, 8, 16)


def trace(asked: TraceFlags) -> AcceptanceTrace:
    save_expanded(asked.target, asked.inflate, asked.save_inflated)
    check_files(asked)
    recorded = record(
        asked.target,
        asked.draft,
        asked.prompts,
        inflate=asked.inflate,
        dtype=asked.dtype,
        max_new_tokens=asked.max_new_tokens,
        limit=asked.num_prompts,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        seed=asked.seed,
        stages=console.progress,
    )
    recorded.save(asked.out)
    routing = show_trace(recorded)
    console.say(f"\n{saved(asked.out)}")
    draw(asked.plot, "acceptance_by_rank", recorded)
    content: dict[str, Any] = {
        "trace": str(asked.out),
        "source": recorded.source,
        "num_prompts": len(recorded.prompts),
        "sampling": recorded.sampling.model_dump(),
        "num_tokens": recorded.num_tokens,
        "rank_acceptance": recorded.rank_acceptance(NUM_CANDIDATES),
    }
    if routing is not None:
        fields = ("num_experts", "num_active", "touched", "correlation", "largest_miss")
        content["routing"] = {name: getattr(routing, name) for name in fields}
    write_json(asked.json, content)
    return recorded


def show_trace(recorded: AcceptanceTrace) -> MeasuredRouting | None:
    """Print acceptance by rank, and the experts that consecutive tokens touch, which are the result."""
    shares = recorded.rank_acceptance(_SHOWN_RANKS)
    rows = [(str(rank), percent(share), percent(sum(shares[:rank]))) for rank, share in enumerate(shares, start=1)]
    console.fields(target=recorded.target, draft=recorded.draft, sampling=recorded.sampling)
    traced = f"{recorded.num_tokens} tokens of {len(recorded.prompts)} prompts"
    console.table(
        f"The target's token among the draft's choices, over {traced}", ("draft's choice", "share", "cumulative"), rows
    )
    if (measured := measured_routing(recorded, file="")) is not None:
        shown = [size for size in _SHOWN_WINDOWS if size <= len(measured.touched)]
        console.paragraph(
            f"Experts of a layer's {measured.num_experts} that {', '.join(map(str, shown))} consecutive tokens touch: "
            f"{', '.join(f'{measured.touched[size - 1]:.2f}' for size in shown)}; c = {measured.correlation:.3f}, "
            f"which misses them by at most {measured.largest_miss:.2f}"
        )
    return measured
