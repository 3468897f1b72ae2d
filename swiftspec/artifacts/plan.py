"""Plan: the chosen policy, shape and devices, its predicted metrics, and its input files. No torch here."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from swiftspec.artifacts.candidate import Candidate, Prediction
from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.gain import Gain
from swiftspec.artifacts.goal import Goal, Objective, cost_per_million
from swiftspec.artifacts.profile import MOST_DEVICES, Collective
from swiftspec.artifacts.trace import GREEDY, SamplingParams
from swiftspec.artifacts.under_load import UnderLoad
from swiftspec.errors import FieldError
from swiftspec.files.document import Basis, Count, Document, Facts, ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance

__all__ = ["Basis", "Candidate", "Goal", "Objective", "Plan", "Prediction"]

# If more than this share of a prediction rests on no measurement of any machine, that is stated first.
WEAK_SHARE = 0.2
WEAK = (Provenance.ROOFLINE, Provenance.ASSUMED)
_Speed = Annotated[float, Field(ge=0)]
_LAYOUT = r"^((dp\d+)?(tp\d+)?(ep\d+)?)$"  # as `DeviceLayout` writes it


class Explored(Facts):
    """The best simulated option of a policy on one split: a cell of the heat map.

    tokens_per_s: from request to last token. tpot_s: mean over requests. For options that did not reach the last stage,
    both are early-stage results, scaled by how the policy's finalist changed between that stage and the last:
    `estimated`. num_options: simulated on this split.
    """

    policy: str
    split: str
    num_devices: int = Field(ge=1)
    tokens_per_s: float = Field(gt=0)
    tpot_s: float = Field(ge=0)
    num_options: Count
    estimated: bool = False


class Sensitivity(Facts):
    """Effect of another assumption on the choice.

    change: `all-reduce +20 %`. tokens_per_s: of the chosen candidate; its prediction is scaled by the ratio of two
    simulations on the same few prompts, as changed and as planned. best, best_tokens_per_s: the fastest of the chosen
    and its rivals after the change, computed likewise; rivals are options that might have been chosen. changes_choice:
    whether that is another option, by more than simplicity may cost.
    """

    change: str
    tokens_per_s: _Speed
    best: str
    best_tokens_per_s: _Speed
    changes_choice: bool


class Acceptance(Facts):
    """Source of the trace's acceptance: `basis` is a sentence, `provenance` how well it is known.

    `warning`: that it is known for one narrow kind of text only; otherwise empty. `spread`: relative standard deviation
    of tokens per round among drafters of the kind, where their mean stands in.
    """

    basis: str
    provenance: Provenance
    warning: str = ""
    spread: float | None = Field(default=None, ge=0)


class GroupMemory(Facts):
    """Memory of each device of a group, in bytes: available and used.

    weights_bytes, kv_bytes: of every model with a shard there. reserve_bytes: captured graphs and workspace.
    usable_bytes: the share of the device's memory that a server may fill.
    """

    devices: tuple[Count, ...]
    weights_bytes: dict[Role, Count]
    kv_bytes: dict[Role, Count]
    reserve_bytes: Count
    usable_bytes: Count

    @property
    def used_bytes(self) -> int:
        return self.loaded_bytes + sum(self.kv_bytes.values())

    @property
    def loaded_bytes(self) -> int:
        """Of all but keys and values."""
        return sum(self.weights_bytes.values()) + self.reserve_bytes


class Rejection(NamedTuple):
    """Reason why options were not simulated, and their number per policy; under no name if it names no policy."""

    reason: str
    by_policy: Mapping[str, int]

    @property
    def num_options(self) -> int:
        return sum(self.by_policy.values())


class Plan(Document):
    """The chosen policy with its shape and devices, and the best of every other policy.

    Attributes
    ----------
    device : str
        `cpu`, `cuda`, or the name of a device that is not installed here.
    num_devices : int
        Available devices; the chosen candidate may use fewer.
    draft_device, draft_devices : str, int
        Kind and number of further devices, which only a draft server uses; empty and 0 without any.
    engine : str, optional
        Engine that will serve, whose forwards were composed; None if they were measured with this project's engine.
    host_s : float, optional
        The user's own host time of a step in seconds; None if it is the engine's.
    engine_settings : dict of str to str
        The user's limits of that engine, by its own words.
    kv_dtype : str
        Format of keys and values in another engine than this package's, bf16 or fp8.
    longest_request : int
        Tokens of the longest request that was planned for, output included; 0 in a plan of measured devices.
    layout : str
        How the devices of a group share the target, `dp8ep8`; empty if they divide all of it.
    target, draft : ModelRef
    profile, trace : Basis
        Files that the plan was computed from, with their SHA-256.
    max_new_tokens : int
        Output tokens of each simulated request, at most.
    sampling : SamplingParams
        How the outputs of its trace were drawn; absent from the file if greedily.
    chosen : Candidate
    alternatives : tuple of Candidate
        The best of every other policy, best first.
    ties : tuple of str
        Policies whose predictions differ from the chosen one by no more than the noise; the chosen one is the simplest.
    num_simulated : int
        Options that were simulated.
    rejected : dict of str to int
        Number of options that were not simulated, by reason.
    goal : Goal
        Goal of the choice.
    gain : Gain, optional
        Of the best policy that drafts over plain decoding: by tokens/s of one request, or by mean end-to-end time under
        the plan's load. None if only one of both was simulated.
    known_errors : dict of str to float or None
        Relative standard deviations of the inputs, which the predictions' intervals include; None where unknown.
    acceptance, quantisation, memory
        For a plan for devices that are not installed here: source of acceptance, weight format of each model, and bytes
        on each device.
    collectives : tuple of Collective
        The all-reduce of each role of the chosen candidate, if its forwards are composed.
    explored, sensitivities
        Other simulations: the best option on each split, and the choice under other assumptions.
    under_load : UnderLoad, optional
        The load that the plan was made for, with its predictions; absent from the file of a plan for one request.
    feature_bytes : int
        Bytes of the target's hidden states that a head reads for a token; absent from the file for any other draft.
    fleet : Fleet, optional
        Replicas of the chosen candidate that serve a load together; `under_load` is then one replica's share of it.

    Examples
    --------
    >>> plan = swiftspec.Plan.load("plan.json")
    >>> plan.chosen.policy, plan.chosen.split
    ('swiftspec', '1+1')
    >>> plan.chosen.prediction.metrics.tpot_s  # seconds per output token
    0.0...
    """

    schema_name: ClassVar[str] = "swiftspec.plan"
    schema_version: ClassVar[int] = 1

    device: str
    engine: str | None = None
    host_s: float | None = Field(default=None, ge=0, exclude_if=lambda found: found is None)
    engine_settings: dict[str, str] = Field(default_factory=dict, exclude_if=lambda found: not found)
    kv_dtype: str = Field(default="", pattern="^(|bf16|fp8)$", exclude_if=lambda found: not found)
    longest_request: Count = Field(default=0, exclude_if=lambda count: not count)
    layout: str = Field(default="", pattern=_LAYOUT, exclude_if=lambda found: not found)
    num_devices: int = Field(ge=1, le=MOST_DEVICES)
    draft_device: str = Field(default="", exclude_if=lambda found: not found)
    draft_devices: Count = Field(default=0, exclude_if=lambda found: not found)
    target: ModelRef
    draft: ModelRef
    profile: Basis
    trace: Basis
    max_new_tokens: int = Field(ge=1)
    sampling: SamplingParams = Field(default=GREEDY, exclude_if=lambda found: found.is_greedy)
    chosen: Candidate
    alternatives: tuple[Candidate, ...]
    ties: tuple[str, ...] = ()
    num_simulated: Count
    rejected: dict[str, Count]
    goal: Goal = Goal()
    gain: Gain | None = Field(default=None, exclude_if=lambda gain: gain is None)
    acceptance: Acceptance | None = None
    known_errors: dict[str, Annotated[float, Field(ge=0)] | None] = Field(default_factory=dict)
    quantisation: dict[Role, str] = Field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    memory: tuple[GroupMemory, ...] = ()
    explored: tuple[Explored, ...] = ()
    sensitivities: tuple[Sensitivity, ...] = ()
    under_load: UnderLoad | None = Field(default=None, exclude_if=lambda found: found is None)
    fleet: Fleet | None = Field(default=None, exclude_if=lambda found: found is None)
    feature_bytes: Count = Field(default=0, exclude_if=lambda count: not count)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for candidate in (self.chosen, *self.alternatives):
            if max(candidate.devices) >= self.num_devices + self.draft_devices:
                listed = ", ".join(map(str, sorted(candidate.devices)))
                raise ValueError(f"{candidate.policy} is on devices {listed}; num_devices is {self.num_devices}")
        if len(self.candidates) <= len(self.alternatives):
            raise ValueError(f"alternatives are {[c.policy for c in self.alternatives]}; expected one of each policy")
        if self.under_load is not None and (found := self.under_load.predictions).keys() != self.candidates.keys():
            named, policies = ", ".join(found) or "nobody", ", ".join(self.candidates)
            raise ValueError(f"under_load.predictions are of {named}; expected one of each of {policies}")
        if self.fleet is not None and self.fleet.chosen.candidate != self.chosen.describe():
            raise ValueError(f"fleet.kinds begins with {self.fleet.chosen.candidate}; expected the plan's choice")
        return self

    @property
    def models(self) -> str:
        """`llama-3-70b in fp8 (lossy) with eagle3 in bf16`; the target alone if no candidate has a draft."""
        return f"{self.target} with {self.draft}" if self.is_drafted else str(self.target)

    @property
    def is_drafted(self) -> bool:
        """Whether any candidate has a draft."""
        return any(candidate.build().layout is not Layout.TARGET_ONLY for candidate in self.candidates.values())

    def __repr__(self) -> str:
        return (
            f"Plan({self.target.model} with {self.draft.model} on {self.where}: {self.chosen.describe()}, "
            f"{self.chosen.tokens_per_s:.1f} tokens/s predicted; {len(self.alternatives)} alternatives)"
        )

    __str__ = __repr__

    @property
    def where(self) -> str:
        """`8 h100-sxm`, and `8 h100-sxm and 1 cpu` where a draft server has other devices."""
        apart = f" and {self.draft_devices} {self.draft_device}" if self.draft_devices else ""
        return f"{self.num_devices} {self.device}{apart}"

    @property
    def binds(self) -> str:
        """What the choice binds beyond token ids, in a sentence; empty if nothing."""
        if not sends_features(self.chosen.build()):
            return ""
        return (
            f"{self.chosen.policy} sends the target's hidden states to the draft, {self.feature_bytes / 1e3:.1f} kB "
            "for each token of prompt and output; the head is that of this very target; and if a message is lost, the "
            "target decodes alone to the end of the request"
        )

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """The chosen candidate and its alternatives, by policy."""
        return {candidate.policy: candidate for candidate in (self.chosen, *self.alternatives)}

    def select(self, policies: Sequence[str] | None) -> list[Candidate]:
        """Candidates of these policies, in the plan's order; all if None. Includes the chosen one, for the regret.

        ValueError if the plan has no candidate of a policy.
        """
        names = set(self.candidates) if policies is None else set(policies)
        if unknown := names - self.candidates.keys():
            raise FieldError("policies", repr(min(unknown)), f"the plan has {', '.join(self.candidates)}")
        return [c for name, c in self.candidates.items() if name in names or c is self.chosen]

    @property
    def fastest_by_devices(self) -> Mapping[int, Explored]:
        """The fastest explored option for each number of devices, fewest first.

        For the number of devices that the choice uses, estimates are left out: there the last stage has decided.
        """
        decided = len(self.chosen.devices)
        cells = [cell for cell in self.explored if not (cell.estimated and cell.num_devices == decided)]
        counts = sorted({cell.num_devices for cell in cells})
        of_count = ([cell for cell in cells if cell.num_devices == count] for count in counts)
        return {cells[0].num_devices: max(cells, key=lambda cell: cell.tokens_per_s) for cells in of_count}

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Price of the devices in use for the time of a million tokens; None if the goal has no price."""
        if self.goal.price_per_hour is None:
            return None
        return cost_per_million(self.goal.price_per_hour, len(self.chosen.devices), self.chosen.tokens_per_s)

    @property
    def rejections(self) -> list[Rejection]:
        """Rejected options by reason, most options first; policies that share a reason are grouped."""
        reasons: dict[str, Counter[str]] = {}
        for text, count in self.rejected.items():
            policy, _, rest = text.partition(": ")
            names_one = policy.isidentifier() and rest  # perhaps one that is not installed here
            reasons.setdefault(rest if names_one else text, Counter())[policy if names_one else ""] += count
        ordered = sorted(reasons.items(), key=lambda item: (-item[1].total(), item[0]))
        return [Rejection(reason, dict(counts.most_common())) for reason, counts in ordered]

    @property
    def weak_share(self) -> float:
        """Share of the chosen candidate's predicted time from `roofline` or `assumed` latencies."""
        shares = self.chosen.prediction.provenance
        return sum(shares.get(provenance, 0.0) for provenance in WEAK)

    @property
    def is_weak(self) -> bool:
        """Whether that share is large enough to be stated first."""
        return self.weak_share > WEAK_SHARE
