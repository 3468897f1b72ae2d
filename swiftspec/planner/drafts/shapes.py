"""Shapes of one kind of draft on the devices of a comparison: which fit, and what each does at a load."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.artifacts.kinds import DraftMemory, KindPoint
from swiftspec.artifacts.load_metrics import RECORDED_ROUNDS
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.named import Kind
from swiftspec.planner.for_device import NUM_NEW_TOKENS, Inputs
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.space import feasible_options
from swiftspec.planner.under_load.load_curves import SharedSteps
from swiftspec.planner.under_load.loads import closed_loop_workload
from swiftspec.planner.under_load.predictor import Predictor, setup_of
from swiftspec.planner.under_load.rounds import looked_up_rounds
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.scheduler.batching import BatchLimits

_TREES, _OWN_SHAPES = 2, 2  # simulated for a load: of a tree policy, and on devices of its own
_MANY = 8  # clients from which trees are not tried: chains have fewer rows


def longest_text(deployment: Deployment) -> int:
    """Tokens of the longest request of a closed loop."""
    output_tokens = deployment.output_tokens or NUM_NEW_TOKENS
    return closed_loop_workload(1, deployment.context, output_tokens).longest_request


@dataclass(kw_only=True)
class Shapes:
    """Shapes of one kind of draft.

    models: target and draft. inputs: profile and trace. counted: of suffix decoding, as chains of one length.
    """

    kind: Kind
    deployment: Deployment
    models: tuple[PlannedModel, PlannedModel]
    inputs: Inputs
    seed: int
    counted: GivenAcceptance | None = None

    def __post_init__(self) -> None:
        deployment, count = self.deployment, self.deployment.num_devices
        self._memory = deployment.memory(*self.models)
        self._output_tokens = deployment.output_tokens or NUM_NEW_TOKENS
        self._longest = longest_text(deployment)
        self._mean_context = deployment.context + self._output_tokens // 2
        splits = [f"{target}+{count - target}" for target in range(1, count)] if self.kind.own_devices else [str(count)]
        self._options, self._rejected = feasible_options(
            self.inputs.profile,
            self.inputs.trace,
            num_devices=count,
            memory=self._memory,
            splits=splits,
            degrees=AllowedDegrees.of(deployment, *self.models, sizes=deployment.sizes, chains_only=True),
            policies=self.kind.policies,
        )
        if self.counted is not None:
            chain = SuffixDecoding(verify_rows=self.counted.num_draft_tokens + 1)
            self._options = [replace(option, policy=chain) for option in self._options[:1]]
        self._serving = deployment.serving(*self.models)
        self._predictor = Predictor(
            self.inputs.profile,
            self.inputs.trace,
            serving=self._serving,
            seed=self.seed,
            given=looked_up_rounds(self.counted.survival, seed=self.seed) if self.counted else None,
        )
        self._closed = ClosedForms(self.inputs.profile, self.inputs.trace)
        self._shared = cache(partial(SharedSteps, self.inputs.profile, self._closed.context))

    def at_all(self, loads: Sequence[int], between: Sequence[int]) -> list[KindPoint]:
        """The fastest at these numbers of clients, and at those between them, in ascending order.

        Between two loads only shapes are tried that have at least the rows of the best at the higher one, and at most
        those of the best at the lower one: with more clients, rows cost more.
        """
        found = {load: point for load in loads if (point := self.best(load)) is not None}
        lengths = {load: point.num_draft_tokens for load, point in found.items()}
        for load in set(between).difference(loads):
            most = [length for other, length in lengths.items() if other < load]
            least = [length for other, length in lengths.items() if other > load]
            likely = range(least[0], most[-1] + 1) if least and most else None
            if (point := self.best(load, likely or None)) is not None:
                found[load] = point
        return [point for _, point in sorted(found.items())]

    def best(self, clients: int, draft_tokens: range | None = None) -> KindPoint | None:
        """The fastest for as many clients; None if nothing has room for them. draft_tokens: those of a verification."""
        fitting = [
            option
            for option in self._options
            if self._fits(option, clients) and (draft_tokens is None or option.policy.target_rows - 1 in draft_tokens)
        ]
        chains = [option for option in fitting if not (option.policy.verifies_trees or self.kind.own_devices)]
        tried = self._fastest_chains(chains, clients) if chains else []
        points = [*tried, *(self.point(option, clients) for option in self._plausible(fitting, clients))]
        if not points:
            return None
        best = max(points, key=lambda point: point.user_tokens_per_s)
        # Their speed without a draft is not known here: `compare_kinds` divides by it.
        rounds = self._rounds_s(chains, tried, clients) | _rounds_s(points[len(tried) :])
        return best.model_copy(update={"pays_above": dict(sorted(rounds.items()))})

    def memory(self, point: KindPoint) -> DraftMemory:
        """What the shape of a point takes."""
        option = next(option for option in self._options if option.describe() == point.candidate)
        groups = self._memory.groups(option, context=self._longest)
        draft_bytes = max(group.weights_bytes.get(Role.DRAFT, 0) for group in groups)
        return DraftMemory(
            draft_bytes=draft_bytes,
            cached_tokens=self._memory.cached_tokens(option, context=self._longest),
            read_again=self._serving.tokens_read_again if self._serving and draft_bytes else 0,
        )

    def objection(self, clients: Sequence[int]) -> str:
        """Why there is nothing for some loads, a clause; empty if there is something for all."""
        if not self._options:
            reasons = Counter({reason: count for reason, count in self._rejected.items() if "split that" not in reason})
            return reasons.most_common(1)[0][0] if reasons else "no split of these devices is feasible"
        short = [count for count in clients if not any(self._fits(option, count) for option in self._options)]
        if not short:
            return ""
        if any(self._has_room(option, min(short)) for option in self._options):
            return f"a step of {self._most_rows} rows holds no draft tokens of {min(short)} clients"
        return f"no room for {min(short)} clients of {self._longest} tokens"

    def _fits(self, option: Option, clients: int) -> bool:
        rows = option.policy.target_rows
        return (rows == 1 or clients * rows <= self._most_rows) and self._has_room(option, clients)

    def _has_room(self, option: Option, clients: int) -> bool:
        return clients * self._longest <= self._memory.cached_tokens(option, context=self._longest)

    @property
    def _most_rows(self) -> int:
        """Rows of a step that clients share."""
        return self._serving.limits.step_tokens if self._serving else BatchLimits().max_rows

    def _plausible(self, options: Sequence[Option], clients: int) -> list[Option]:
        """Shapes on devices of their own, and trees, that are plausible for a load."""
        by_estimate = sorted(options, key=self._closed.estimate, reverse=True)
        if self.kind.own_devices:
            return by_estimate[:_OWN_SHAPES]
        if clients < _MANY and self._serving is None:
            return [option for option in by_estimate if option.policy.verifies_trees][:_TREES]
        return []

    def _fastest_chains(self, chains: Sequence[Option], clients: int) -> list[KindPoint]:
        """What some chains do, the fastest among them.

        Of this package's engine, which takes long to simulate, the plausible best, and longer or shorter ones as long
        as these are faster: by its length, a chain's speed rises and then falls.
        """
        chains = sorted(chains, key=lambda option: option.policy.target_rows)
        if self._serving is not None or chains[0].policy.drafts_from_text:
            return [self.point(option, clients) for option in chains]
        found: dict[int, KindPoint] = {}
        shared = self._shared(clients, self._most_rows)
        plausible = [self._closed.estimate(option, shared) for option in chains]
        best = plausible.index(max(plausible))
        while True:
            near = range(max(0, best - 1), min(len(chains), best + 2))
            found |= {number: self.point(chains[number], clients) for number in near if number not in found}
            fastest = max(near, key=lambda number: found[number].user_tokens_per_s)
            if fastest == best:
                return list(found.values())
            best = fastest

    def _rounds_s(self, chains: Sequence[Option], tried: Sequence[KindPoint], clients: int) -> dict[int, float]:
        """Seconds of chains' rounds by draft tokens: simulated, or in closed form, off as the nearest."""
        known = _rounds_s(tried)
        if len(known) == len(chains):
            return known
        shared = self._shared(clients, self._most_rows)
        closed = {chain.policy.target_rows - 1: self._closed.round(chain, shared)[1] for chain in chains}
        near = {tokens: min(known, key=lambda other: abs(other - tokens)) for tokens in closed}
        return {tokens: closed[tokens] + known[near[tokens]] - closed[near[tokens]] for tokens in closed}

    def point(self, option: Option, clients: int) -> KindPoint:
        """What an option does for as many clients."""
        setup = setup_of(option, self._predictor.latencies, context=self._mean_context)
        run = self._predictor.closed_loop(
            setup,
            clients,
            prompt_tokens=self.deployment.context,
            output_tokens=self._output_tokens,
            num_blocks=self._memory.num_blocks(option, longest=self._longest),
        )
        speed = 1 / run.metrics.tpot_s.mean
        tokens_per_s = clients * self._output_tokens / run.metrics.e2el_s.mean
        is_recorded = run.method == RECORDED_ROUNDS
        return KindPoint(
            clients=clients,
            policy=option.policy.name,
            split=option.split,
            candidate=option.describe(),
            num_draft_tokens=option.policy.target_rows - 1,
            user_tokens_per_s=speed,
            device_tokens_per_s=tokens_per_s / self.deployment.num_devices,
            tokens_per_round=self._predictor.tokens_per_round(setup) if is_recorded else run.metrics.tokens_per_round,
            draft_share=run.draft_share,
            verify_share=run.verify_share,
            method=run.method,
        )


def _rounds_s(points: Iterable[KindPoint]) -> dict[int, float]:
    """Seconds of rounds by draft tokens."""
    return {point.num_draft_tokens: point.tokens_per_round / point.user_tokens_per_s for point in points}
