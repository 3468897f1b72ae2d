"""Measurement of servers by probes, in turn and several times, and the profile that is made of it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from swiftspec.artifacts.profile import HostPoint, Profile, StepPoint
from swiftspec.artifacts.served import MeasuredStep, Served
from swiftspec.files.document import ModelRef, Origin
from swiftspec.loadtest.readings import Reading
from swiftspec.policies.effects import Role
from swiftspec.profiler.served.core_pace import watched
from swiftspec.profiler.served.fit import FittedSteps, fit_above, fit_steps, typical
from swiftspec.profiler.served.probes import Drafting, Measured, Probe, ProbedServer, PromptProbe, PromptTime, Work
from swiftspec.progress import Progress
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.sharing import Sharing, SharingCost
from swiftspec.timing.timeline import Phase

_PASSES: Final = 5
_WARM_UP: Final = Probe(1, 16, 4)
_SETTLES_S: Final = 1.5  # a worker of vLLM polls for a second after its last step, on the cores of the next server's
_SHORT, _STEPS = 16, 32
_LONG: Final = 1024  # tokens of long prompts, at most, or half of the longest request
_LARGEST: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSizes:
    """Sizes that are measured. sequences: requests at once, at most. longest: tokens of a request, at most."""

    sequences: int
    longest: int

    @property
    def context(self) -> int:
        """Tokens of long prompts."""
        return max(_SHORT, min(_LONG, self.longest // 2))

    def decoding(self) -> Iterator[Probe]:
        """Requests that decode, behind short and long prompts."""
        sizes = [1]
        while sizes[-1] < self.sequences:
            sizes.append(min(2 * sizes[-1], self.sequences))
        for sequences in sizes:
            yield Probe(sequences, _SHORT, _STEPS)
        for sequences in {sizes[0], sizes[len(sizes) // 2], sizes[-1]}:
            yield Probe(sequences, self.context, _STEPS)

    def prompts(self) -> Iterator[PromptProbe]:
        """Prompts that are new, and one whose beginning is not."""
        tokens = _SHORT
        while tokens < self.longest and tokens <= _LARGEST:
            yield PromptProbe(tokens)
            tokens *= 2
        yield PromptProbe(self.context, cached=self.context // 2)


class Measurements(NamedTuple):
    """What servers have told: steps and prompts, the pace of the cores that all times hold for, metrics at the end."""

    sizes: ProbeSizes
    steps: tuple[Measured, ...]
    prompts: tuple[PromptTime, ...]
    pace_s: float | None
    readings: Mapping[Drafting, Reading]

    def also(self, other: "Measurements") -> "Measurements":
        """Both together, of servers on devices that keep their pace; sizes are those of the first."""
        return self._replace(
            steps=self.steps + other.steps,
            prompts=self.prompts + other.prompts,
            readings={**self.readings, **other.readings},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """Times of servers, fitted. request_s, prompt_token_s: as of `fit_above`. measured: what steps were fitted to."""

    steps: FittedSteps
    request_s: float
    prompt_token_s: float
    measured: tuple[MeasuredStep, ...]

    @classmethod
    def of(cls, measured: Measurements) -> "ServerTimes":
        """The fit of measurements. ValueError if no request was seen to decode."""
        if not any(isinstance(one.probe, Probe) for one in measured.steps):
            raise ValueError("no step could be measured: the server's answers come in too few chunks")
        medians = typical(measured.steps)
        steps = fit_steps(medians)
        request_s, prompt_token_s = fit_above(measured.prompts)
        return cls(
            steps=steps,
            request_s=request_s,
            prompt_token_s=prompt_token_s,
            measured=tuple(
                MeasuredStep(**one.work._asdict(), seconds=one.seconds, fitted_s=steps.seconds(one.work))
                for one in medians
            ),
        )


def measure_servers(
    servers: Sequence[ProbedServer], sizes: ProbeSizes, *, most_s: float, progress: Progress
) -> Measurements:
    """Measure each server in turn, several times, so that all suffer alike from what a machine does meanwhile.

    Where they compute on cores of this machine, the cores' pace is watched, and all is told at the usual one. Prompts
    are measured on the first server alone, if it is plain.

    most_s: no further pass begins that would not end in time.

    ValueError: if a request fails.
    """
    began_s = time.perf_counter()
    probes: dict[Drafting, list[Probe | PromptProbe]] = {each.drafting: [*sizes.decoding()] for each in servers}
    if Drafting.PLAIN in probes:
        probes[Drafting.PLAIN] += sizes.prompts()
    total, done = _PASSES * sum(map(len, probes.values())), 0
    for server in servers:
        server.decoding(_WARM_UP, seed=0)
    timed: list[tuple[Measured, float]] = []  # each with the pace of the cores meanwhile
    times: list[PromptTime] = []
    with watched(servers[0].cores) as pace:
        for number in range(_PASSES):
            for server in servers:
                time.sleep(_SETTLES_S)
                for probe in probes[server.drafting]:
                    sent_s, found = time.perf_counter(), None
                    if isinstance(probe, Probe):
                        found = server.decoding(probe, seed=1)
                    elif (read := server.prompt(probe, seed=2 + number)) is not None:
                        found = read[0]
                        times.append(read[1])
                    if found is not None:
                        timed.append((found, pace(sent_s, time.perf_counter())))
                    done += 1
                    progress(done, total, f"{server.drafting}, pass {number + 1} of {_PASSES}")
            spent_s = time.perf_counter() - began_s
            if spent_s * (number + 2) / (number + 1) > most_s:
                break
    usual_s = median(pace_s for _, pace_s in timed) if timed else 1.0
    return Measurements(
        sizes,
        tuple(found._replace(seconds=found.seconds * usual_s / pace_s) for found, pace_s in timed),
        tuple(times),
        usual_s if servers[0].cores else None,
        {server.drafting: server.client.reading() for server in servers},
    )


def profile_of(
    times: ServerTimes,
    sizes: ProbeSizes,
    *,
    device: str,
    target: ModelRef,
    draft: ModelRef,
    served: Served,
    policies: Mapping[Drafting, str],
) -> Profile:
    """The profile of a server. policies: names of those whose rounds were measured, by how they draft."""
    steps, last = times.steps, sizes.longest  # what the fit says of contexts lies on straight lines
    coefficients = steps.coefficients

    def verify(rows: int, context: int) -> float:
        return steps.seconds(Work(Drafting.PLAIN, 1, float(rows), float(context)))

    def prefill(rows: int, context: int) -> float:
        return steps.seconds(Work(Drafting.PLAIN, read=rows, read_before=context))

    def draft_forward(rows: int, context: int) -> float:
        cached_s = coefficients.draft_cached_s * context
        return max(1e-9, coefficients.draft_s + coefficients.draft_row_s * rows + cached_s)

    tables = [(Role.TARGET, Phase.VERIFY, verify, steps.rows), (Role.TARGET, Phase.PREFILL, prefill, steps.rows)]
    if Drafting.DRAFT in policies:
        tables.append((Role.DRAFT, Phase.EXPAND, draft_forward, (1, 2)))
        tables.append((Role.DRAFT, Phase.PREFILL, draft_forward, steps.rows))
    points = [
        StepPoint(
            role=role,
            phase=phase,
            degree=1,
            peer_busy=False,
            rows=rows,
            context=context,
            quantiles_s=(seconds(rows, context),) * NUM_QUANTILES,
            num_samples=len(times.measured),
            provenance=Provenance.INTERPOLATED,
        )
        for role, phase, seconds, sizes_of_phase in tables
        for rows in sizes_of_phase
        for context in (0, last)
    ]
    rounds = {Drafting.LOOKUP: coefficients.lookup_s, Drafting.DRAFT: coefficients.round_s}
    target_costs = (Role.TARGET, coefficients.sequence_s, coefficients.cached_s)
    return Profile(
        origin=Origin.here(),
        device=device,
        num_devices=1,
        target=target,
        draft=draft,
        steps=tuple(points),
        host=tuple(
            HostPoint(
                phase=Phase.COMMIT,
                rows=1,
                policy=policies[drafting],
                quantiles_s=(seconds,) * NUM_QUANTILES,
                num_samples=len(times.measured),
                provenance=Provenance.INTERPOLATED,
            )
            for drafting, seconds in rounds.items()
            if drafting in policies and seconds > 0
        ),
        peers_interfere=False,
        padded_prompts=(),
        sharing=Sharing(
            costs=tuple(
                SharingCost(
                    role=role,
                    degree=1,
                    peer_busy=False,
                    sequence_s=sequence_s,
                    slot_s=slot_s,
                    provenance=Provenance.INTERPOLATED,
                )
                for role, sequence_s, slot_s in (target_costs, (Role.DRAFT, 0.0, coefficients.draft_cached_s))
            ),
            host_share=1.0,
        ),
        served=served,
    )
