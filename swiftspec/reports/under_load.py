"""Section about a plan's predictions under the load that it was made for, and their sentences."""

from swiftspec.artifacts.goal import cost_per_million
from swiftspec.artifacts.load_metrics import Percentiles
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.under_load import LoadPrediction, UnderLoad
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.reports.formatting import count, drafting, milliseconds, money, percent, shape_text, speed
from swiftspec.reports.model import SIMULATED, Row, Section, Table, numbers, row, texts


def under_load(plan: Plan) -> Section | None:
    """The choice, what it assumes, and the best candidate of every policy; None of a plan for one request at a time."""
    if (load := plan.under_load) is None:
        return None
    sentences = (
        choice(plan, load),
        drafting(plan.gain) if plan.gain is not None else "",
        _cost(plan, load),
        _assumed(load),
        cached(plan, load),
        _unmet(plan, load),
        _single_request(plan, load),
    )
    table = Table(
        title="The best of every policy under this load: goodput in requests/s, latencies in ms, tokens/s of a request "
        "alone",
        columns=(
            *texts("policy", "split"),
            *numbers("goodput", "in limits", "TTFT", "p95", "TPOT", "p95", "E2E", "p95", "alone"),
        ),
        rows=[_row(plan, policy, prediction) for policy, prediction in load.ranked.items()],
        footnote=f"{count(load.num_candidates, 'candidate')} simulated under this load",
    )
    return Section(key="load", title="Under load", parts=(*filter(None, sentences), table), sources=SIMULATED)


def _row(plan: Plan, policy: str, prediction: LoadPrediction) -> Row:
    """Means and 95th percentiles, and tokens/s of a single request."""
    metrics = prediction.metrics
    return row(
        policy,
        plan.candidates[policy].split,
        f"{metrics.request_goodput:.2f}",
        percent(prediction.attained),
        *_two(metrics.ttft_s),
        *_two(metrics.tpot_s),
        *_two(metrics.e2el_s),
        speed(prediction.tokens_per_s),
        remark=shape_text(prediction.candidate),
        chosen=policy == plan.chosen.policy,
    )


def _two(values: Percentiles) -> tuple[str, str]:
    return milliseconds(values.mean), milliseconds(values.p95)


def choice(plan: Plan, load: UnderLoad) -> str:
    """Sentence: the chosen candidate and the figure that it was chosen for."""
    prediction = load.predictions[plan.chosen.policy]
    metrics = prediction.metrics
    why = (
        f"{metrics.request_goodput:.2f} requests/s within their limits, of {metrics.request_throughput:.2f} served "
        f"({percent(prediction.attained)})."
        if load.goal.is_limited
        else f"the lowest mean end-to-end time, {milliseconds(metrics.e2el_s.mean)} ms: neither the options nor the "
        "workload's classes have limits."
    )
    text = f"Chosen for this load: {prediction.candidate}, for {why}"
    if prediction.num_blocks is None:
        return text
    gave_way = metrics.num_preemptions
    lack = f"; for lack of them requests gave way {count(gave_way, 'time')}" if gave_way else ""
    return f"{text} Its devices have room for {prediction.num_blocks:,} cache blocks of 16 tokens{lack}."


def _cost(plan: Plan, load: UnderLoad) -> str:
    """Sentence: what a million output tokens of this load cost, with the draft and without."""
    if (price := plan.goal.price_per_hour) is None:
        return ""

    def cost(policy: str) -> str:
        tokens_per_s = load.output_tokens_per_s(load.predictions[policy])
        return money(cost_per_million(price, len(plan.candidates[policy].devices), tokens_per_s))

    plain = Autoregressive.name
    without = f", {cost(plain)} without a draft" if plain in load.predictions and plan.chosen.policy != plain else ""
    return f"A million output tokens cost {cost(plan.chosen.policy)} at this load{without}."


def _assumed(load: UnderLoad) -> str:
    """Sentence: the requests, the limits and the scheduler."""
    simulated = count(load.num_requests, "request")
    if load.num_simulated < load.num_requests:
        simulated = f"the first {load.num_simulated} of {simulated}"
    name = f" of {load.workload.path}" if load.workload.path else ""
    limited = f" {stated}." if (stated := stated_limits(load)) else ""
    if load.engine:
        return f"Load: {load.arrivals}, {simulated}{name}, served by {load.engine}.{limited}"
    return (
        f"Load: {load.arrivals}, {simulated}{name}, at most {load.options.max_running} at once; every candidate was "
        f"simulated with the same requests, {_methods(load)}.{limited}"
    )


def _methods(load: UnderLoad) -> str:
    """How candidates were simulated, a clause."""
    by_method: dict[str, list[str]] = {}
    for policy, prediction in load.predictions.items():
        by_method.setdefault(prediction.method, []).append(policy)
    if len(by_method) == 1:
        return f"by {next(iter(by_method))}"
    return " and ".join(f"by {method} ({', '.join(policies)})" for method, policies in sorted(by_method.items()))


def cached(plan: Plan, load: UnderLoad) -> str:
    """Sentence: how much of the prompts is found in the prefix cache, with the choice's draft and without a draft.

    Of a pool that only decodes: what it leaves to others, and how many instances that takes.
    """
    if (pool := load.decode_pool) is not None:
        return (
            f"A pool that only decodes: TTFT begins when a prompt has been read elsewhere, and its cache comes "
            f"{milliseconds(pool.transfer_s)} ms later. Reading the prompts, {pool.prompt_tokens_per_s:,.0f} tokens/s, "
            f"takes {count(pool.num_prefill_instances, 'instance')} on as many devices, each of which reads "
            f"{pool.prefill_tokens_per_s:,.0f} tokens/s. More of a split into prefill and decoding is not planned."
        )
    if not load.repeated_share:
        return ""
    repeated = f"{percent(load.repeated_share)} of the prompts' tokens are those of earlier requests"
    chosen = load.predictions[plan.chosen.policy].cache
    if chosen is None:
        return f"{repeated}; this package's engine has no prefix cache and reads the prompts whole."
    found = (
        f"{repeated}; {percent(chosen.hit_rate)} are found in the prefix cache, which holds {chosen.tokens:,} tokens"
    )
    plain = load.predictions.get(Autoregressive.name)
    if plain is None or plain.cache is None or plan.chosen.policy == Autoregressive.name:
        return f"{found}."
    return f"{found}, and {percent(plain.cache.hit_rate)} of {plain.cache.tokens:,} without a draft."


def stated_limits(load: UnderLoad) -> str:
    """The limits of every class, and how many requests keep them; empty without any."""
    kept = f", for {load.goal.percentile:g} % of the requests" if load.goal.percentile is not None else ""
    return f"Limits: {_limits(load)}{kept}" if load.goal.is_limited else ""


def _limits(load: UnderLoad) -> str:
    """`TTFT 500.00 ms and TPOT 50.00 ms`, with their names if there are several classes."""
    said = {}
    for each in load.goal.classes:
        limits = {"TTFT": each.ttft_s, "TPOT": each.tpot_s}
        said[each.name] = " and ".join(f"{name} {milliseconds(limit)} ms" for name, limit in limits.items() if limit)
    alone = len(said) == 1
    return "; ".join(("" if alone else f"{name} ") + (limits or "none") for name, limits in said.items())


def _unmet(plan: Plan, load: UnderLoad) -> str:
    """Sentence, if no candidate is acceptable; otherwise empty."""
    prediction = load.predictions[plan.chosen.policy]
    if load.goal.accepts(prediction.attained):
        return ""
    assert load.goal.percentile is not None, "without one every candidate is acceptable"
    most = max(load.predictions.values(), key=lambda one: one.attained)
    return (
        f"No candidate keeps the limits of {load.goal.percentile:g} % of the requests: the chosen one, which has the "
        f"highest goodput, keeps those of {percent(prediction.attained)}"
        + (f", and {most.candidate} those of {percent(most.attained)}." if most.attained > prediction.attained else ".")
    )


def _single_request(plan: Plan, load: UnderLoad) -> str:
    """Sentence: the choice for one request at a time, and its figures under the load."""
    alone = load.single_request
    if alone.candidate == load.predictions[plan.chosen.policy].candidate:
        return f"For a single request the choice would be the same, with {speed(alone.tokens_per_s)} tokens/s."
    under = (
        f"{alone.metrics.request_goodput:.2f} requests/s within their limits ({percent(alone.attained)})"
        if load.goal.is_limited
        else f"a mean end-to-end time of {milliseconds(alone.metrics.e2el_s.mean)} ms"
    )
    chosen = load.predictions[plan.chosen.policy]
    return (
        f"For a single request {alone.candidate} would be chosen, with {speed(alone.tokens_per_s)} tokens/s against "
        f"{speed(chosen.tokens_per_s)}; under this load it has {under}."
    )


def compared(load: UnderLoad, policy: str) -> str:
    """Sentence for a simulation of the same workload: what the plan predicted, and for how many requests."""
    metrics = load.predictions[policy].metrics
    part = f"the first {load.num_simulated} of " if load.num_simulated < load.num_requests else ""
    within = f" and {metrics.request_goodput:.2f} requests/s within their limits" if load.goal.is_limited else ""
    whose = f" Limits are the plan's: {_limits(load)}." if load.goal.is_limited else ""
    return (
        f"The plan was made for this workload. For {part}{count(load.num_requests, 'request')} it predicted a mean "
        f"TPOT of {milliseconds(metrics.tpot_s.mean)} ms{within}.{whose}"
    )
