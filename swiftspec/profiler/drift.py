"""Latency drift of a machine since it was profiled: brief sweeps on engines that are in use for something else."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from statistics import median

from swiftspec.artifacts.profile import Profile
from swiftspec.engine.launcher import Launcher
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.profiler.benches import timeline_of
from swiftspec.profiler.grids import REPEATS, SWEEP_REPEATS
from swiftspec.profiler.passes import drafting_alone, new_resumptions, new_sweeps
from swiftspec.profiler.prompts import Prompts
from swiftspec.profiler.steps import step_points
from swiftspec.timing.step_key import RowFactors, StepTable
from swiftspec.timing.timeline import Timeline

_CONTEXTS = (64, 256)  # taken in turn, if the engines have room for them


class DriftProbe:
    """Times the forwards of engines between their other work.

    engines: sequence of (Launcher, groups, ranks). With the device numbers of each role, and the processes that divide
    them. Engines without a draft, or with several target groups, are not timed. prompt: prompts as those of the
    profile: the time of a mixture's forward depends on its text.
    """

    def __init__(
        self,
        engines: Sequence[tuple[Launcher, Mapping[Role, tuple[int, ...]], Mapping[Role, int]]],
        *,
        prompt: Prompts,
    ) -> None:
        self._engines = [
            (engine, dict(groups), dict(ranks))
            for engine, groups, ranks in engines
            if engine.layout is not Layout.TARGET_ONLY and engine.target_groups == 1
        ]
        room = min((engine.max_context - 1 for engine, *_ in self._engines), default=0)
        self._contexts = sorted({min(context, room) for context in _CONTEXTS if room > 0})
        self._prompt = prompt
        self._number = count()
        self._timelines: dict[int, list[Timeline]] = defaultdict(list)

    def warm_up(self) -> None:
        """Discarded sweep at every context: the first forward of a shape takes longer."""
        for _ in self._contexts:
            self.sweep()
        self._timelines.clear()

    def sweep(self) -> None:
        """Time every row count of every kind of forward, as often as in a profile, on every engine.

        A single forward of each would not do: a short one takes up to 7 % longer than the mean of three.
        """
        if not self._contexts:
            return
        context = self._contexts[next(self._number) % len(self._contexts)]
        prompt = self._prompt(context)
        for index, (engine, *_) in enumerate(self._engines):
            kind = engine.draft_facts.kind
            for sweep in new_sweeps(engine.layout, repeats=SWEEP_REPEATS, device=engine.device, kind=kind):
                self._timelines[index].append(timeline_of(engine, sweep, prompt))
            # On groups of their own, drafts wait for targets, and their first forward after that takes longer.
            if engine.layout is Layout.DISAGGREGATED:
                resumptions = new_resumptions(repeats=REPEATS, device=engine.device, kind=kind)
                self._timelines[index].append(drafting_alone(timeline_of(engine, resumptions, prompt)))

    def factors(self, profile: Profile) -> dict[StepTable, RowFactors]:
        """Ratio of present to profiled time for every timed table, by rows: the median over contexts."""
        ratios: dict[StepTable, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for index, (engine, groups, ranks) in enumerate(self._engines):
            for point in step_points(self._timelines[index], groups, engine.layout, ranks=ranks):
                # A cold forward is compared with cold ones only.
                is_known = not point.cold or point.table in profile.latencies.steps
                if is_known and point.degree in profile.latencies.degrees(
                    point.phase, role=point.role, ranks=point.ranks
                ):
                    before_s = profile.step(point.key).mean_s
                    ratios[point.table][point.rows].append(point.latency.mean_s / before_s)
        return {table: {rows: median(values) for rows, values in by_rows.items()} for table, by_rows in ratios.items()}
