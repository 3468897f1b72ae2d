"""`swiftspec rates`: a record of acceptance by position, from a server's counters or a trace."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from swiftspec.acceptance.importing import Counted, from_sglang, from_trace, from_vllm
from swiftspec.acceptance.records import AcceptanceRecord, AcceptanceRecords
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, saved, write_json
from swiftspec.files.document import Origin

__all__ = ["Conditions", "read_acceptance", "show_record"]

_TRACED_TOKENS = 8  # of a chain on a trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What flags say about the served text; None if they do not."""

    target: str | None
    drafter: str | None
    kind: str | None
    dataset: str
    temperature: float | None
    thinking: bool | None
    context: int | None


def read_acceptance(
    *,
    vllm_metrics: Path | None,
    sglang_metrics: Path | None,
    trace: Path | None,
    num_draft_tokens: int | None,
    conditions: Conditions,
    out: Path,
    json_path: Path | None = None,
) -> AcceptanceRecord:
    """Read, print and save."""
    sources = {"--vllm-metrics": vllm_metrics, "--sglang-metrics": sglang_metrics, "--trace": trace}
    given = [name for name, path in sources.items() if path is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ValueError(f"expected one of --vllm-metrics, --sglang-metrics and --trace; {found} is given")
    check_outputs(inputs=sources, out=out, json=json_path)
    if trace is not None:
        recorded = AcceptanceTrace.load(trace)
        conditions = _of_trace(conditions, recorded)
        counted = from_trace(recorded, num_draft_tokens=num_draft_tokens or _TRACED_TOKENS)
    elif sglang_metrics is not None:
        if num_draft_tokens is None:
            raise ValueError("--num-draft-tokens is missing; SGLang's metrics do not tell the length of chains")
        counted = from_sglang(sglang_metrics, num_draft_tokens=num_draft_tokens)
    else:
        assert vllm_metrics is not None, "it is the one that is given"
        counted = from_vllm(vllm_metrics)
        if num_draft_tokens not in (None, counted.num_draft_tokens):
            raise ValueError(
                f"--num-draft-tokens is {num_draft_tokens}; vLLM counted {counted.num_draft_tokens} positions"
            )
    record = _record(counted, conditions, source=given[0].removeprefix("--"))
    AcceptanceRecords(origin=Origin.here(), records=(record,)).save(out)
    show_record(record)
    console.say(f"\n{saved(out)}")
    derived = {"rates": record.rates, "conditional": record.conditional, "basis": record.basis}
    write_json(json_path, {"acceptance": str(out), "record": record.model_dump(mode="json"), **derived})
    return record


def _of_trace(conditions: Conditions, trace: AcceptanceTrace) -> Conditions:
    """What flags leave open, as the trace has it; its output is greedy."""
    return replace(
        conditions,
        target=conditions.target or trace.target.model,
        drafter=conditions.drafter or trace.draft.model,
        kind=conditions.kind or trace.draft_kind,
        temperature=0.0 if conditions.temperature is None else conditions.temperature,
    )


def _record(counted: Counted, conditions: Conditions, *, source: str) -> AcceptanceRecord:
    for field in ("target", "drafter"):
        if not getattr(conditions, field):
            raise ValueError(f"--{field} is missing; --{source} does not tell it")
    facts = asdict(conditions) | counted._asdict() | {"kind": conditions.kind or "serial", "source": source}
    return AcceptanceRecord.checked(facts, source=f"--{source}")


def show_record(record: AcceptanceRecord) -> None:
    """Print a line per position: rates, and the length of chains that end there."""
    rows = [
        (str(position), f"{rate:.3f}", f"{conditional:.3f}", f"{record.length(position):.2f}")
        for position, (rate, conditional) in enumerate(zip(record.rates, record.conditional, strict=True), start=1)
    ]
    columns = ("position", "accepted up to here", "if all before were", "tokens per round, bonus included")
    console.table(f"Acceptance of {record.key}", columns, rows)
    console.paragraph(f"From {record.basis}. {record.note}.")
