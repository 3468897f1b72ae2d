"""The best shape of a kind of draft at a load, on all devices of a deployment."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from swiftspec.artifacts.kinds import KindPoint
from swiftspec.artifacts.step_costs import StepCosts
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.steps import StepWork
from swiftspec.planner.bounds import ClosedForms
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.deployment import Deployment, PlannedModel
from swiftspec.planner.for_device import NUM_NEW_TOKENS, Inputs
from swiftspec.planner.kinds.clients import decode_together
from swiftspec.planner.kinds.named import Kind
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.option import Key, Option
from swiftspec.planner.space import feasible_options
from swiftspec.planner.under_load.candidates import chains_from, closed_loop
from swiftspec.planner.under_load.deployed import Deployed
from swiftspec.planner.under_load.drafts import DraftModel
from swiftspec.planner.under_load.rounds import Round, priced, rounds_of
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator

__all__ = ["MOST_ROWS", "Shapes"]

MOST_ROWS = 512  # of a step that clients share
_SIMULATED_PROMPTS, _SIMULATED_TOKENS = 16, 96  # and output tokens of each
_TREES, _OWN_SHAPES = 2, 2  # simulated for a load: of a tree policy, and on devices of its own
_MANY = 8  # clients from which trees are not tried: chains have fewer rows


@dataclass(kw_only=True)
class Shapes:
    """Shapes of one kind of draft.

    Parameters
    ----------
    kind : Kind
    deployment : Deployment
    models : tuple of PlannedModel
        Target and draft.
    inputs : Inputs
        Profile and trace.
    seed : int
    """

    kind: Kind
    deployment: Deployment
    models: tuple[PlannedModel, PlannedModel]
    inputs: Inputs
    seed: int
    _rounds: dict[Key, list[Round]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        deployment, count = self.deployment, self.deployment.num_devices
        specs = dict(zip(Role, (model.spec for model in self.models), strict=True))
        self._memory = MemoryModel(
            device=deployment.spec,
            specs=specs,
            quantisation=dict(zip(Role, (deployment.quant, deployment.draft_quant), strict=True)),
        )
        self._text_tokens = deployment.context + (deployment.output_tokens or NUM_NEW_TOKENS)
        self.mean_context = (deployment.context + self._text_tokens) // 2
        splits = [f"{target}+{count - target}" for target in range(1, count)] if self.kind.own_devices else [str(count)]
        self._options, self._rejected = feasible_options(
            self.inputs.profile,
            self._trace,
            num_devices=count,
            memory=self._memory,
            splits=splits,
            degrees=AllowedDegrees(engine=deployment.serving_engine, specs=specs),
            policies=self.kind.policies,
        )
        self._served: Deployed | None = None
        if (engine := deployment.served_by) is not None:
            self._served = Deployed(
                engine=engine,
                device=deployment.spec,
                degree=count,
                spec=specs[Role.TARGET],
                quant=deployment.quant,
                settings=deployment.settings,
                context=self._text_tokens,
            )
        self._closed = ClosedForms(self.inputs.profile, self._trace)
        self._simulator = Simulator(self.inputs.profile, self._trace)

    @property
    def _trace(self) -> AcceptanceTrace:
        return self.inputs.trace

    def best(self, clients: int) -> KindPoint | None:
        """The fastest for as many clients; None if nothing has room for them."""
        fitting = [option for option in self._options if self._fits(option, clients)]
        points = [self.point(option, clients) for option in self._promising(fitting, clients)]
        return max(points, key=lambda point: point.user_tokens_per_s, default=None)

    def objection(self, clients: Sequence[int]) -> str:
        """Why there is nothing for some loads, a clause; empty if there is something for all."""
        if not self._options:
            reasons = Counter({reason: count for reason, count in self._rejected.items() if "split that" not in reason})
            return reasons.most_common(1)[0][0] if reasons else "no split of these devices is feasible"
        short = [count for count in clients if not any(self._fits(option, count) for option in self._options)]
        return f"no room for {min(short)} clients of {self._text_tokens} tokens" if short else ""

    def _fits(self, option: Option, clients: int) -> bool:
        room = self._memory.cached_tokens(option, context=self._text_tokens)
        return clients * option.policy.target_rows <= self._most_rows and clients * self._text_tokens <= room

    @property
    def _most_rows(self) -> int:
        """Rows of a step that clients share."""
        return self._served.limits.step_tokens if self._served else MOST_ROWS

    def _promising(self, options: Sequence[Option], clients: int) -> Iterator[Option]:
        def by_estimate(some: Sequence[Option]) -> list[Option]:
            return sorted(some, key=lambda option: self._closed.estimate(option, sequences=clients), reverse=True)

        if self.kind.own_devices:
            yield from by_estimate(options)[:_OWN_SHAPES]
            return
        yield from (option for option in options if not option.policy.verifies_trees)
        if clients < _MANY and self._served is None:
            trees = [option for option in options if option.policy.verifies_trees]
            yield from by_estimate(trees)[:_TREES]

    @property
    def chains(self) -> list[Option]:
        """Options that verify chains."""
        return [option for option in self._options if not option.policy.verifies_trees]

    def point(self, option: Option, clients: int) -> KindPoint:
        """What an option does for as many clients."""
        if self._served is not None:
            speed, tokens, shares = self._under_engine(self._served, option, clients)
        elif self.kind.own_devices:
            found = decode_together(
                option,
                self.inputs.profile.latencies,
                self._trace,
                clients,
                context=self.mean_context,
                max_rows=MOST_ROWS,
                seed=self.seed,
            )
            speed, tokens = found.tokens_per_s, found.tokens_per_round
            shares = found.draft_busy, found.target_busy
        else:
            price = priced(self._rounds_of(option), self._costs(option), clients, seed=self.seed)
            speed, tokens = price.tokens_per_s, price.tokens
            shares = price.draft_s / price.round_s, price.verify_s / price.round_s
        return KindPoint(
            clients=clients,
            policy=option.policy.name,
            split=option.split,
            candidate=option.describe(),
            num_draft_tokens=option.policy.target_rows - 1,
            user_tokens_per_s=speed,
            device_tokens_per_s=clients * speed / self.deployment.num_devices,
            tokens_per_round=tokens,
            draft_share=shares[0],
            verify_share=shares[1],
            simulated=self.kind.own_devices or self._served is not None,
        )

    def _under_engine(self, served: Deployed, option: Option, clients: int) -> tuple[float, float, tuple[float, float]]:
        """A user's tokens/s, tokens of a round, and the models' shares of its time, under an engine's step rule."""
        rounds, deployment, model = self._rounds_of(option), self.deployment, self.models[1]
        draft = DraftModel(
            spec=model.spec,
            quant=deployment.draft_quant,
            products=model.products,
            reads_target=model.kind.reads_target,
        )
        chains = chains_from(rounds, served, draft)
        rows = chains.rows if chains else 1
        run = closed_loop(
            served,
            chains,
            clients,
            prompt_tokens=deployment.context,
            output_tokens=deployment.output_tokens or NUM_NEW_TOKENS,
            seed=self.seed,
        )
        draft_s = chains.draft_s(clients, self.mean_context) if chains else 0.0
        work = StepWork(
            sequences=clients, rows_each=rows, cache_tokens=clients * self.mean_context, sampled=clients * rows
        )
        verify_s, round_s = served.steps.seconds(work), draft_s + served.step_s(work)
        tokens = fmean(one.tokens for one in rounds)
        return 1 / float(run.tpot_s.mean()), tokens, (draft_s / round_s, verify_s / round_s)

    def _rounds_of(self, option: Option) -> list[Round]:
        """Rounds of one simulated request after the other."""
        if option.key not in self._rounds:
            count = len(self._trace.prompts)
            indices = np.linspace(0, count - 1, min(count, _SIMULATED_PROMPTS)).round().astype(int)
            run = self._simulator.run(
                option.policy,
                degrees=option.degrees,
                prompt_indices=indices.tolist(),
                seed=self.seed,
                max_new_tokens=_SIMULATED_TOKENS,
            )
            self._rounds[option.key] = rounds_of(run.timelines)
        return self._rounds[option.key]

    def _costs(self, option: Option) -> StepCosts:
        return StepCosts.of(
            option.policy,
            self.inputs.profile.latencies,
            degrees=dict.fromkeys(Role, option.degree(Role.TARGET)),
            ranks={},
            context=self.mean_context,
        )
