"""`swiftspec profile`: measures a model pair on this machine's devices."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swiftspec.artifacts.candidate import named_group
from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.routes import ExpertsTouched
from swiftspec.cli import console
from swiftspec.cli.inflate import save_expanded
from swiftspec.cli.outputs import check_files, draw, saved, write_json
from swiftspec.cli.verbs.data import ProfileFlags
from swiftspec.devices.contention import BUSY_SHARE
from swiftspec.profiler.pair import measure_pair, registered_name
from swiftspec.reports.formatting import milliseconds, percent, signed_percent
from swiftspec.timing.sharing import Sharing, SharingTable
from swiftspec.timing.step_key import StepTable
from swiftspec.timing.timeline import Phase
from swiftspec.timing.warm_up import WarmUpCost

if TYPE_CHECKING:
    from swiftspec.profiler.op_benchmark import OpRow


def profile(asked: ProfileFlags) -> Profile:
    """Measure, print and save the pair's forwards and, with --ops, the operations they consist of.

    ValueError, and nothing saved, if measurements on a GPU contradict each other and --accept-noise is not given.
    """
    if asked.engine is not None or asked.url is not None:
        from swiftspec.cli.served import profile_served

        return profile_served(asked)
    save_expanded(asked.target, asked.inflate, asked.save_inflated)
    check_files(asked)
    both = measure_pair(
        asked.target,
        asked.draft,
        inflate=asked.inflate,
        dtype=asked.dtype,
        device=asked.device,
        num_devices=asked.devices,
        ranks=asked.ranks,
        max_sequences=asked.max_sequences,
        with_ops=asked.ops is not None,
        accept_noise=asked.accept_noise,
        stages=console.progress,
        minutes=asked.minutes,
    )
    measured = both.profile
    measured.save(asked.out)
    show_profile(measured)
    console.say(f"\n{saved(asked.out)}")
    if asked.ops is not None:
        from swiftspec.profiler.op_benchmark import op_tables

        name = registered_name(measured.origin.device)
        op_tables(both.op_rows, device=name, origin=measured.origin).save(asked.ops)
        show_ops(both.op_rows)
        console.say(f"\n{saved(asked.ops)}")
    draw(asked.plot, "step_latency", measured)
    steps = [
        step.model_dump(mode="json", exclude={"quantiles_s"}) | {"median_s": step.latency.median_s}
        for step in measured.steps
    ]
    content: dict[str, Any] = {"profile": str(asked.out), "device": measured.origin.device, "steps": steps}
    if measured.sharing is not None:
        content["sharing"] = measured.sharing.model_dump(mode="json")["costs"]
    if measured.experts_touched is not None:
        content["experts_touched"] = measured.experts_touched.model_dump(mode="json")
    content["warm_up"] = [cost.model_dump(mode="json") for cost in measured.warm_up]
    write_json(asked.json, content)
    return measured


def show_ops(rows: Sequence["OpRow"]) -> None:
    """Print a line per operation and size: microseconds, and the share of the measured bandwidth."""
    from swiftspec.profiler.op_benchmark import peak_bytes_per_s

    peak = peak_bytes_per_s(rows)
    lines = [
        (
            row.op,
            row.shape if row.devices == 1 else f"{row.shape} on {row.devices}",
            row.dtype,
            f"{row.timing.median_s * 1e6:.1f}",
            f"{row.timing.low_s * 1e6:.1f} to {row.timing.high_s * 1e6:.1f}",
            "-" if row.bytes_per_s is None else f"{row.bytes_per_s / 1e9:.1f}",
            "-" if row.bytes_per_s is None else f"{100 * row.bytes_per_s / peak:.0f} %",
        )
        for row in rows
    ]
    columns = ("operation", "shape", "dtype", "median us", "20 to 80 %", "GB/s", "of a copy's")
    console.table("Operations, their weights and caches read from memory", columns, lines, num_text_columns=3)


def show_profile(measured: Profile) -> None:
    """Print one line per step at one context, the middle one of those measured."""
    contexts = sorted({step.context for step in measured.steps if step.phase is not Phase.PREFILL})
    context = contexts[len(contexts) // 2] if contexts else 0
    steps = [step for step in measured.steps if step.phase is not Phase.PREFILL and step.context == context]
    rows = [
        (
            step.phase,
            *_where(step.table),
            "cold" if step.cold else "",
            str(step.rows),
            milliseconds(step.latency.median_s),
            milliseconds(step.quantiles_s[-1]),
            f"{step.rows / step.latency.median_s:.0f}",
        )
        for step in sorted(steps, key=_order)
    ]
    console.fields(target=measured.target, draft=measured.draft, device=measured.origin.device)
    columns = ("forward", "degree", "peer", "", "rows", "median ms", "p97.5 ms", "tokens/s at most")
    console.table(f"Whole forwards after a prefix of {context} tokens", columns, rows)
    show_checks(measured, context)
    if measured.experts_touched is not None:
        show_experts(measured, measured.experts_touched, context)
    if measured.sharing is not None:
        show_sharing(measured.sharing)
    if measured.warm_up:
        show_warm_up(measured.warm_up)
    origins = Counter(str(point.provenance) for point in (*measured.steps, *measured.host))
    samples = sum(point.num_samples for point in (*measured.steps, *measured.host))
    known = ", ".join(f"{count} {origin}" for origin, count in origins.items())
    console.paragraph()
    console.paragraph(
        f"{len(measured.steps)} steps and {len(measured.host)} host costs from {samples} samples: {known}"
    )
    if measured.others_share is not None:
        advice = "; measure again on a quiet machine" if measured.others_share > BUSY_SHARE else ""
        console.paragraph(f"Other processes took {percent(measured.others_share)} of the cores' time meanwhile{advice}")


def _where(table: StepTable | SharingTable) -> tuple[str, str]:
    """The group that computes a forward, and whether the other model does so meanwhile."""
    return named_group(table.degree, table.ranks), "busy" if table.peer_busy else "idle"


def show_experts(measured: Profile, touched: ExpertsTouched, context: int) -> None:
    """Print experts touched beside the times of verifications, and whether the times follow them."""
    from swiftspec.costmodel.routed_profile import expert_fits

    fits = {" ".join(_where(fit.table)): fit for fit in expert_fits(measured, context=context)}
    rows = [
        (
            str(point.rows),
            f"{point.experts:.2f}",
            *(milliseconds(fit.seconds[point.rows]) if point.rows in fit.seconds else "-" for fit in fits.values()),
        )
        for point in touched.points
    ]
    columns = ("rows", "experts", *(f"ms on {name}" for name in fits))
    title = f"Experts of a layer's {touched.num_experts} that a verification touches, and median ms by degree and peer"
    console.table(title, columns, rows)
    for name, fit in fits.items():
        console.paragraph(
            f"On {name}: {milliseconds(fit.fixed_s)} ms, {milliseconds(fit.expert_s)} ms for each expert touched and "
            f"{milliseconds(fit.row_s)} ms for each row, at most {percent(fit.largest_error)} from the measured times; "
            f"without the experts at most {percent(fit.largest_error_by_rows)}"
        )


def show_sharing(sharing: Sharing) -> None:
    """Print each model's cost of a further sequence, and how well it fits the steps that were measured."""
    measured = Counter(point.table for point in sharing.points if point.sequences > 1)
    rows = [
        (
            cost.role,
            *_where(cost.table),
            f"{cost.sequence_s * 1e6:.1f}",
            f"{cost.slot_s * 1e9:.1f}",
            str(measured[cost.table]),
            *("-" if error is None else percent(error) for error in (cost.median_error, cost.largest_error)),
        )
        for cost in sharing.costs
    ]
    if not rows:
        console.paragraph("No step was shared by several sequences at both contexts")
        return
    columns = ("model", "degree", "peer", "us", "ns per slot", "kinds of steps", "median error", "largest")
    console.table("Cost of each sequence of a step beyond the first", columns, rows, num_text_columns=3)
    if sharing.host_share is not None:
        console.paragraph(
            f"Each further request of a step adds {percent(sharing.host_share)} of the host time that one alone needs"
        )


def show_warm_up(costs: Sequence[WarmUpCost]) -> None:
    """Print what a long pause costs the forward of one row after it, and how well the cost fits what was measured."""
    rows = [
        (
            cost.role,
            named_group(cost.degree, cost.ranks),
            milliseconds(cost.extra_s[0]),
            percent(cost.left),
            milliseconds(cost.evicted_s),
            "-" if cost.median_error is None else percent(cost.median_error),
        )
        for cost in costs
    ]
    columns = ("model", "degree", "ms longer", "left after each forward", "weights evicted in ms", "median error")
    console.table("The first forwards after a pause", columns, rows)


def show_checks(measured: Profile, context: int) -> None:
    """Print composed forwards of several ranks against those measured whole, and the assumed cost of an all-reduce."""
    rows = [
        (
            check.phase,
            named_group(check.degree, check.ranks),
            str(check.rows),
            *(milliseconds(parts.get(name, 0.0)) for name in ("shard", "all_reduce", "gather", "note")),
            milliseconds(composed.latency.median_s),
            milliseconds(check.latency.median_s),
            signed_percent(composed.latency.median_s / check.latency.median_s - 1),
        )
        for composed, check in checked_steps(measured)
        if check.context == context
        for parts in [{part.name: part.seconds for part in composed.parts}]
    ]
    if not rows:
        return
    columns = ("forward", "ranks", "rows", "shard ms", "all-reduces", "gather", "note", "composed", "measured", "error")
    console.table(f"Forwards of several ranks after a prefix of {context} tokens, median ms", columns, rows)
    for collective in measured.collectives:
        known = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in collective.seconds.items())
        group = named_group(collective.degree, collective.ranks)
        console.paragraph(f"An all-reduce of the {collective.role} on {group}: {known}")


def checked_steps(measured: Profile) -> list[tuple[StepPoint, StepPoint]]:
    """Pairs of composed and measured step, for steps that were also measured whole."""
    composed = {(step.table, step.rows, step.context): step for step in measured.steps}
    pairs = [(composed.get((check.table, check.rows, check.context)), check) for check in measured.checks]
    return sorted(((step, check) for step, check in pairs if step), key=lambda pair: _order(pair[1]))


def _order(step: StepPoint) -> tuple[str, int, int, int, bool, bool, int]:
    return step.role, list(Phase).index(step.phase), step.degree, step.ranks, step.peer_busy, step.cold, step.rows
