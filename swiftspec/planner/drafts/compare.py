"""All kinds of drafts on one target and one set of devices, at several loads.

Every load is a closed loop of clients, which `under_load` predicts for each shape that is plausible.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.artifacts.kinds import DraftingKind, DraftMemory, KindComparison, KindPoint
from swiftspec.artifacts.load_metrics import RECORDED_ROUNDS
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.errors import FieldError
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.break_even import with_gains
from swiftspec.planner.drafts.device_uses import fewest_devices, replica_loads, uses_of
from swiftspec.planner.drafts.named import NONE, SUFFIX, DraftInput, Kind, kinds_of
from swiftspec.planner.for_device import NUM_NEW_TOKENS, Inputs, check_acceptance, prepare
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.recorded_routing import with_recorded_routing
from swiftspec.planner.search.backends import Workers, uncollected
from swiftspec.planner.search.bounds import ClosedForms
from swiftspec.planner.search.decision import UNKNOWN_ACCEPTANCE, acceptance_error, gain_error
from swiftspec.planner.search.evaluation import warm_up
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.space import feasible_options
from swiftspec.planner.under_load.loads import closed_loop_workload, longest_request
from swiftspec.planner.under_load.predictor import Predictor, setup_of
from swiftspec.planner.under_load.rounds import looked_up_rounds
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.progress import Progress
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.latency import LatencyTable
from swiftspec.timing.latency import Provenance

__all__ = ["compare_kinds"]

_OURS = f"this package's engine with steps of {BatchLimits().max_rows} rows beside those of prompts"
_MOST_CLIENTS = 256  # of this package's engine, which has no limit of its own
_BETWEEN = (1, 2, 4, 8, 16, 32, 64, 128)
_UNUSED_DRAFT = "eagle3"  # of policies without a draft: every target can have one
_TEXT = Path(__file__).parents[2] / "profiles" / "demo-sapphire-rapids-2-cores" / "trace.npz"
_OUR_TEXT = (
    "no text is given: Python code that the bundled model wrote stands in, which repeats itself; --trace has yours"
)
_TREES, _OWN_SHAPES = 2, 2  # simulated for a load: of a tree policy, and on devices of its own
_MANY = 8  # clients from which trees are not tried: chains have fewer rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Kinds of one draft, or those without a draft, to be compared in a process of their own.

    counted: acceptance of suffix decoding, if the user gave it. names_suffix: whether the user asked for it. between:
    loads that tell up to which one a kind pays.
    """

    deployment: Deployment
    target: str
    asked: DraftInput | None
    text: Path | None
    dataset: str | None
    clients: tuple[int, ...]
    seed: int
    counted: GivenAcceptance | None = None
    names_suffix: bool = False
    between: tuple[int, ...] = _BETWEEN

    def on(self, num_devices: int, clients: tuple[int, ...]) -> "_Task":
        """The same on fewer devices, at these loads alone."""
        fewer = replace(self.deployment, num_devices=num_devices)
        return replace(self, deployment=fewer, clients=clients, between=())


def compare_kinds(
    deployment: Deployment,
    *,
    target: str,
    drafts: Sequence[DraftInput],
    clients: Sequence[int],
    text: Path | None = None,
    dataset: str | None = None,
    seed: int = 0,
    num_jobs: int = -1,
    price_per_hour: float | None = None,
    progress: Progress,
) -> KindComparison:
    """Every kind of draft at its best shape, for every number of clients that decode together.

    Parameters
    ----------
    deployment : Deployment
    target : str
    drafts : sequence of DraftInput
        With `suffix` among them its acceptance is the given one, and no text's.
    clients : sequence of int
        Loads: clients with one request each under way, all of which share every step.
    text : Path, optional
        A recorded trace, whose text suffixes are looked up in. Its routing is used if its target has as many experts.
    dataset : str, optional
        Acceptance on this data set or class of text.
    seed, num_jobs : int
        As of a plan.
    price_per_hour : float, optional
        Of one device, in any currency.

    Raises
    ------
    ValueError
        One sentence naming field and value. A draft that cannot be planned is no error if others can.
    """
    loads = _checked(clients, deployment)
    counted = next((asked.acceptance for asked in drafts if asked.draft == SUFFIX), None)
    names_suffix = any(asked.draft == SUFFIX for asked in drafts)
    drafts = [asked for asked in drafts if asked.draft != SUFFIX]
    for asked in drafts:
        deployment.pair(target, asked.draft)
        check_acceptance(dataset, None, asked.acceptance)
    planned = PlannedModel.of(Role.TARGET, target).in_layout(deployment.layout)
    deployment = with_recorded_routing(deployment, planned, text)
    quant = deployment.as_stored(planned, planned).quant
    serving = deployment.serving(planned, planned)
    whole = [
        _Task(
            deployment=deployment,
            target=target,
            asked=asked,
            text=text,
            dataset=dataset,
            clients=loads,
            seed=seed,
            counted=counted,
            names_suffix=names_suffix,
        )
        for asked in (None, *drafts)
    ]
    devices = deployment.num_devices
    each = None
    if deployment.layout is None:
        usable_bytes = deployment.memory(planned, planned).usable_bytes
        each = fewest_devices(planned.spec, quant, num_devices=devices, usable_bytes=usable_bytes)
    parts = [] if each is None else [task.on(each, replica_loads(loads, devices // each)) for task in whole]
    found: list[DraftingKind] = []
    apart: list[DraftingKind] = []
    warm_up(num_jobs)
    for done, kinds in enumerate(Workers(_compared, num_jobs).map([*whole, *parts]), start=1):
        (found if done <= len(whole) else apart).extend(kinds)
        progress(done, len(whole) + len(parts), "kinds of drafts")
    plain = found[0]
    if not plain.points:
        raise FieldError("target", target, f"it cannot be served on {deployment.num_devices} devices: {plain.reason}")
    spread = gain_error(deployment.engine if serving else None)
    return KindComparison(
        target=planned.name,
        device=deployment.device,
        num_devices=deployment.num_devices,
        quantisation=quant,
        context=deployment.context,
        clients=loads,
        kinds=tuple(with_gains(kind, plain, loads, spread=spread) for kind in found),
        routing=str(deployment.routing) if planned.spec.experts else "",
        engine=serving.described() if serving else _OURS,
        uses=tuple(uses_of(loads, found, apart, devices=devices, each=each)) if each else (),
        price_per_hour=price_per_hour,
    )


def _checked(clients: Sequence[int], deployment: Deployment) -> tuple[int, ...]:
    engine = deployment.served_by
    most = engine.limits(deployment.spec, deployment.settings).requests if engine else _MOST_CLIENTS
    if deployment.output_tokens == 1:
        raise FieldError("output_tokens", "1", "expected at least 2: a speed is that of tokens after the first")
    if not clients:
        raise FieldError("clients", "empty", "expected numbers of requests at once, such as 1,4,16,64")
    for count in clients:
        if not 1 <= count <= most:
            raise FieldError("clients", count, f"expected 1 to {most}")
    return tuple(sorted(set(clients)))


@uncollected()
def _compared(task: _Task) -> list[DraftingKind]:
    """The kinds of a task. Whatever is wrong with a draft is the reason that it has no points."""
    if task.asked is None:
        text = task.text or _TEXT
        plain, suffix = Kind(name=NONE, policies=("autoregressive",)), Kind(name=SUFFIX, policies=("suffix_decoding",))
        return [_kind(task, plain), _kind(task, suffix, text=text)]
    models = task.deployment.pair(task.target, task.asked.draft)
    kinds = kinds_of(models[1].name, models[1].kind, num_devices=task.deployment.num_devices)
    # No engine that serves has a draft on devices of its own.
    return [_kind(task, kind) for kind in kinds if task.deployment.served_by is None or not kind.own_devices]


def _kind(task: _Task, kind: Kind, *, text: Path | None = None) -> DraftingKind:
    draft = task.asked.draft if task.asked else _UNUSED_DRAFT
    models = task.deployment.pair(task.target, draft)
    deployment = task.deployment.as_stored(*models)
    named = {"name": kind.name, "draft": models[1].name if task.asked else "", "own_devices": kind.own_devices}
    try:
        inputs = prepare(
            deployment,
            target=models[0],
            draft=models[1],
            trace=text,
            dataset=task.dataset if task.asked else None,
            given=task.asked.acceptance if task.asked else None,
            seed=task.seed,
            longest=_longest_text(deployment),
        )
    except ValueError as error:
        if task.asked is None:
            raise
        return DraftingKind.model_validate({**named, "reason": str(error)})
    counted = task.counted if kind.name == SUFFIX else None
    shapes = _Shapes(kind=kind, deployment=deployment, models=models, inputs=inputs, seed=task.seed, counted=counted)
    between = () if kind.own_devices else tuple(load for load in task.between if load < max(task.clients))
    points = [point for load in sorted({*task.clients, *between}) if (point := shapes.best(load)) is not None]
    stated = {}
    if kind.name != NONE:
        known = acceptance_error(inputs.acceptance)
        stated = {
            "provenance": inputs.acceptance.provenance,
            "basis": inputs.acceptance.basis,
            "warning": inputs.acceptance.warning,
            "acceptance_spread": UNKNOWN_ACCEPTANCE if known is None else known,
        }
    if kind.name == SUFFIX and counted:
        stated |= {"basis": counted.describe(), "provenance": Provenance.GIVEN}
    elif kind.name == SUFFIX and text == _TEXT:
        stated |= {"basis": _OUR_TEXT, "is_bundled": not task.names_suffix}
    elif kind.name == SUFFIX and inputs.acceptance.provenance is Provenance.ASSUMED:
        stated["provenance"] = Provenance.GIVEN  # only the target's text matters, whatever drafted it
    return DraftingKind.model_validate(
        {
            **named,
            **stated,
            "points": tuple(points),
            "memory": shapes.memory(points[0]) if points else None,
            "reason": shapes.objection(task.clients),
        }
    )


def _longest_text(deployment: Deployment) -> int:
    """Tokens of the longest request of a closed loop."""
    output_tokens = deployment.output_tokens or NUM_NEW_TOKENS
    return longest_request(closed_loop_workload(1, deployment.context, output_tokens))


@dataclass(kw_only=True)
class _Shapes:
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
    counted : GivenAcceptance, optional
        Of suffix decoding, as chains of one length.
    """

    kind: Kind
    deployment: Deployment
    models: tuple[PlannedModel, PlannedModel]
    inputs: Inputs
    seed: int
    counted: GivenAcceptance | None = None

    def __post_init__(self) -> None:
        deployment, count = self.deployment, self.deployment.num_devices
        specs = dict(zip(Role, (model.spec for model in self.models), strict=True))
        self._memory = deployment.memory(*self.models)
        self._output_tokens = deployment.output_tokens or NUM_NEW_TOKENS
        self._longest = _longest_text(deployment)
        self._mean_context = deployment.context + self._output_tokens // 2
        splits = [f"{target}+{count - target}" for target in range(1, count)] if self.kind.own_devices else [str(count)]
        self._options, self._rejected = feasible_options(
            self.inputs.profile,
            self._trace,
            num_devices=count,
            memory=self._memory,
            splits=splits,
            degrees=AllowedDegrees(
                sizes=deployment.sizes,
                engine=deployment.served_by,
                drafter=self.models[1].method,
                chains_only=True,
                specs=specs,
                block_tokens=self.models[1].block_tokens,
            ),
            policies=self.kind.policies,
        )
        if self.counted is not None:
            chain = SuffixDecoding(verify_rows=self.counted.num_draft_tokens + 1)
            self._options = [replace(option, policy=chain) for option in self._options[:1]]
        self._serving = deployment.serving(*self.models)
        self._predictor = Predictor(
            LatencyTable(self.inputs.profile.latencies),
            self._trace,
            device=self.inputs.profile.device,
            serving=self._serving,
            seed=self.seed,
            given=looked_up_rounds(self.counted.survival, seed=self.seed) if self.counted else None,
        )
        self._closed = ClosedForms(self.inputs.profile, self._trace)

    @property
    def _trace(self) -> AcceptanceTrace:
        return self.inputs.trace

    def best(self, clients: int) -> KindPoint | None:
        """The fastest for as many clients; None if nothing has room for them."""
        fitting = [option for option in self._options if self._fits(option, clients)]
        points = [self.point(option, clients) for option in self._plausible(fitting, clients)]
        if not points:
            return None
        best = max(points, key=lambda point: point.user_tokens_per_s)
        # Their speed without a draft is not known here: `with_gains` divides by it.
        rounds = {point.num_draft_tokens: point.tokens_per_round / point.user_tokens_per_s for point in points}
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

    def _plausible(self, options: Sequence[Option], clients: int) -> Iterator[Option]:
        def by_estimate(some: Sequence[Option]) -> list[Option]:
            return sorted(some, key=self._closed.estimate, reverse=True)

        if self.kind.own_devices:
            yield from by_estimate(options)[:_OWN_SHAPES]
            return
        yield from (option for option in options if not option.policy.verifies_trees)
        if clients < _MANY and self._serving is None:
            trees = [option for option in options if option.policy.verifies_trees]
            yield from by_estimate(trees)[:_TREES]

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
