"""AcceptanceTrace: a draft's ranking of the target's own output. Recorded once, replayed by the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from swiftspec.artifacts.routes import MOST_EXPERTS, ROUTES, check_routes
from swiftspec.files.archives import MOST_ARCHIVE_BYTES, archive_bytes, read_archive
from swiftspec.files.document import Document, Facts, ModelRef, Origin
from swiftspec.files.reading import parse_json, shown
from swiftspec.files.writing import write_output
from swiftspec.policies import DraftKind

_MOST_SEED = 10**17  # with the prompts' numbers, exact in every JSON reader of this package


class SamplingParams(Facts):
    """Parameters of the same names as those of `Engine.generate`.

    seed: of the first prompt; prompt n, from 0, has the seed `seed + n`, so that no two prompts share their noise.
    """

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=_MOST_SEED)] = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, so that the other parameters change nothing."""
        return self.temperature == 0.0

    def of_prompt(self, number: int) -> dict[str, Any]:
        """The prompt's, as keyword arguments of a sampler. number: its place among all, from 0."""
        return {**self.model_dump(), "seed": self.seed + number}

    def __str__(self) -> str:
        if self.is_greedy:
            return "greedy"
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        return ", ".join([*parts, f"seed {self.seed}"])


GREEDY = SamplingParams()
SYNTHESISED = "synthesised"  # source of a trace that holds no text


class Guesser(StrEnum):
    """Source of guesses of the next token."""

    DRAFT = "draft"
    FUZZY = "fuzzy"  # the draft, layers in groups
    EXIT = "exit"  # the first half of the target


class Guesses(NamedTuple):
    """The K best tokens for output position t given everything before it, best first, and log-probs (nats).

    tokens, logprobs: int32, float32 arrays (T, K); of guesses ahead (T, D, K).
    """

    tokens: np.ndarray
    logprobs: np.ndarray

    @property
    def num_candidates(self) -> int:
        return int(self.tokens.shape[-1])


# One-dimensional arrays of the file, all prompts concatenated; in addition two for every guesser.
_COLUMNS = ("target_tokens", "ranks")
_ARRAYS = {"about", "lengths", "prompt_lengths", "prompt_tokens", "draft_tokens", "draft_logprobs", *_COLUMNS}

_AHEAD = "ahead"
_OPTIONAL_ARRAYS = {f"{source}_{name}" for source in (*Guesser, _AHEAD) for name in Guesses._fields} | {ROUTES}
_MOST_TOKEN_ID = 2**31 - 1
_ROUNDING = 1e-3  # of a log-prob, which rounding may leave a little above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPrompt:
    """One prompt. T output tokens, K candidates.

    prompt_tokens: int32 (P,), at least one.
    target_tokens: int32 (T,), the target's own output.
    guesses: of the draft, and of other guessers that the trace recorded.
    ranks: int32 (T,), rank of the target's token among all that the draft may guess; 0 is the draft's first choice.
    ended: whether the last token is an end of sequence, rather than the length limit reached.
    ahead: of a draft that guesses worse the farther ahead: [t, d - 1] is its guess of output token t if it did not know
        the d tokens before it as the target has them: they were masks, or the hidden states after them its own.
    routes: unsigned (T, layers, k), of a target with experts: those that each layer chose for the row that predicts
        output token t.
    """

    prompt_id: str
    prompt_tokens: np.ndarray
    target_tokens: np.ndarray
    guesses: Mapping[Guesser, Guesses]
    ranks: np.ndarray
    ended: bool
    ahead: Guesses | None = None
    routes: np.ndarray | None = None

    @property
    def draft(self) -> Guesses:
        return self.guesses[Guesser.DRAFT]

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, P."""
        return len(self.prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceTrace:
    """A draft model's ranking of the target's own output on some prompts; what `trace` returns.

    Parameters
    ----------
    origin : Origin
        The command, machine and versions that produced it.
    source : str
        `recorded`, or `synthesised` from published acceptance.
    target, draft : ModelRef
    draft_kind : DraftKind
    prompts : tuple of TracedPrompt
        With T output tokens and K candidates each: token ids (T,), and the draft's candidates (T, K) with log-probs.
    num_experts : int, optional
        Routed experts of each of the target's layers, of which prompts have the `routes`; 0 without any.
    sampling : SamplingParams, optional
        How the output was drawn. If it was not greedy, guesses are made with the noise of the target's draws, as the
        engine makes them; their log-probs are of the guesses then.

    Examples
    --------
    >>> trace = swiftspec.AcceptanceTrace.load("trace.npz")
    >>> trace.prompts[0].target_tokens.shape == trace.prompts[0].ranks.shape  # (T,)
    True
    """

    origin: Origin
    source: str
    target: ModelRef
    draft: ModelRef
    prompts: tuple[TracedPrompt, ...]
    draft_kind: DraftKind = DraftKind.SERIAL
    num_experts: int = 0
    sampling: SamplingParams = GREEDY

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("prompts is empty; a trace needs at least one")

    @property
    def has_text(self) -> bool:
        """Whether its tokens are those of texts, as a model wrote them."""
        return self.source != SYNTHESISED

    @property
    def guessers(self) -> frozenset[Guesser]:
        """Guessers recorded for every prompt."""
        return frozenset.intersection(*[frozenset(prompt.guesses) for prompt in self.prompts])

    @property
    def num_ahead(self) -> int:
        """Tokens ahead of the known ones for which the draft's guesses are recorded, D; 0 for a serial draft."""
        return min(0 if prompt.ahead is None else prompt.ahead.tokens.shape[1] for prompt in self.prompts)

    @property
    def num_tokens(self) -> int:
        """Output tokens of all prompts."""
        return sum(len(prompt.target_tokens) for prompt in self.prompts)

    def rank_acceptance(self, num_ranks: int) -> list[float]:
        """Share of output tokens that are the draft's first choice, second choice, ..."""
        ranks = np.concatenate([prompt.ranks for prompt in self.prompts])
        return [float(np.mean(ranks == rank)) for rank in range(num_ranks)]

    def save(self, path: Path | str) -> None:
        """Write an .npz archive, whole or not at all."""
        write_output(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The bytes of a saved file."""
        about = _About(
            **{name: getattr(self, name) for name in _SHARED},
            prompts=tuple(_PromptFacts(prompt_id=p.prompt_id, ended=p.ended) for p in self.prompts),
        )
        arrays: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in self.prompts]) for name in _COLUMNS}
        sources: dict[str, list[Guesses]] = {
            guesser: [prompt.guesses[guesser] for prompt in self.prompts] for guesser in self.guessers
        }
        if most := self.num_ahead:
            sources[_AHEAD] = [Guesses(*(column[:, :most] for column in p.ahead)) for p in self.prompts if p.ahead]
        for source, of_prompts in sources.items():
            for name, columns in zip(Guesses._fields, zip(*of_prompts, strict=True), strict=True):
                arrays[f"{source}_{name}"] = np.concatenate(columns)
        if self.num_experts:
            arrays[ROUTES] = np.concatenate([prompt.routes for prompt in self.prompts if prompt.routes is not None])
        arrays["lengths"] = np.array([len(prompt.target_tokens) for prompt in self.prompts])
        arrays["prompt_lengths"] = np.array([prompt.prompt_length for prompt in self.prompts])
        arrays["prompt_tokens"] = np.concatenate([prompt.prompt_tokens for prompt in self.prompts])
        return archive_bytes({"about": np.array(about.to_json())} | arrays)

    @classmethod
    def load(cls, path: Path | str) -> "AcceptanceTrace":
        """Read what `save` wrote. ValueError, one sentence naming file and field, for anything else."""
        path = Path(path)
        arrays = read_archive(path, kind="an acceptance trace")
        if missing := _ARRAYS - arrays.keys():
            raise ValueError(f"{path}: {min(missing)} is missing")
        if unknown := arrays.keys() - _ARRAYS - _OPTIONAL_ARRAYS:
            raise ValueError(f"{path}: {shown(min(unknown))} is an array that a trace does not have")
        try:
            content = parse_json(str(arrays["about"]))
        except ValueError as error:
            raise ValueError(f"{path}: about: {error}") from error
        about = _About.parse(content, source=str(path))
        try:
            _check(arrays, about)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(**{name: getattr(about, name) for name in _SHARED}, prompts=tuple(_split(about.prompts, arrays)))


class _PromptFacts(Facts):
    prompt_id: str
    ended: bool


class _About(Document):
    """Contents of the file other than its arrays."""

    schema_name: ClassVar[str] = "swiftspec.acceptance-trace"
    schema_version: ClassVar[int] = 2

    source: str
    target: ModelRef
    draft: ModelRef
    draft_kind: DraftKind = DraftKind.SERIAL
    num_experts: int = Field(default=0, ge=0, le=MOST_EXPERTS, exclude_if=lambda count: not count)
    sampling: SamplingParams = Field(default=GREEDY, exclude_if=lambda found: found.is_greedy)
    prompts: tuple[_PromptFacts, ...] = Field(min_length=1)


_SHARED = _About.model_fields.keys() - {"prompts"}  # fields that are those of the trace


def _split(prompts: Sequence[_PromptFacts], arrays: Mapping[str, np.ndarray]) -> list[TracedPrompt]:
    of_prompt = [*pairwise(np.cumsum([0, *arrays["prompt_lengths"].tolist()]).tolist())]
    of_output = [*pairwise(np.cumsum([0, *arrays["lengths"].tolist()]).tolist())]
    guesses, routes = _guesses(arrays), arrays.get(ROUTES)
    ahead = guesses.pop(_AHEAD, None)
    return [
        TracedPrompt(
            prompt_id=facts.prompt_id,
            prompt_tokens=arrays["prompt_tokens"][before:after],
            target_tokens=arrays["target_tokens"][start:stop],
            guesses={
                Guesser(source): Guesses(tokens[start:stop], logprobs[start:stop])
                for source, (tokens, logprobs) in guesses.items()
            },
            ranks=arrays["ranks"][start:stop],
            ended=facts.ended,
            ahead=Guesses(ahead.tokens[start:stop], ahead.logprobs[start:stop]) if ahead else None,
            routes=None if routes is None else routes[start:stop],
        )
        for facts, (before, after), (start, stop) in zip(prompts, of_prompt, of_output, strict=True)
    ]


def _guesses(arrays: Mapping[str, np.ndarray]) -> dict[str, Guesses]:
    """Guesses of all prompts by their source. ValueError if only one of a source's two arrays is there."""
    found: dict[str, Guesses] = {}
    for source in (*Guesser, _AHEAD):
        names = [f"{source}_{name}" for name in Guesses._fields]
        present = [name for name in names if name in arrays]
        if present and present != names:
            raise ValueError(f"{min(set(names) - set(present))} is missing, but there is {present[0]}")
        if present:
            found[source] = Guesses(*(arrays[name] for name in names))
    return found


def _check(arrays: Mapping[str, np.ndarray], about: _About) -> None:
    num_prompts = len(about.prompts)
    for name, least in (("lengths", 0), ("prompt_lengths", 1)):
        counts = arrays[name]
        if counts.shape != (num_prompts,) or counts.dtype.kind not in "iu" or counts.min() < least:
            raise ValueError(
                f"{name} is {shown(counts.tolist())}; expected {num_prompts} token counts of {least} or more"
            )
        if counts.max() > MOST_ARCHIVE_BYTES:  # so that no sum of them overflows
            raise ValueError(f"{name} holds {counts.max()}; expected no more tokens than fit into a trace")
    num_outputs = int(arrays["lengths"].sum())
    _check_column("prompt_tokens", arrays["prompt_tokens"], rows=int(arrays["prompt_lengths"].sum()))
    for name in _COLUMNS:
        _check_column(name, arrays[name], rows=num_outputs)
    for source, guesses in _guesses(arrays).items():
        _check_guesses(source, guesses, rows=num_outputs, dimensions=3 if source == _AHEAD else 2)
    check_routes(arrays, rows=num_outputs, num_experts=about.num_experts)


def _check_guesses(guesser: str, guesses: Guesses, *, rows: int, dimensions: int) -> None:
    tokens, logprobs = guesses
    _check_column(f"{guesser}_tokens", tokens, rows=rows, dimensions=dimensions)
    _check_column(f"{guesser}_logprobs", logprobs, rows=rows, dimensions=dimensions, kinds="f")
    if tokens.shape != logprobs.shape:
        raise ValueError(
            f"{guesser}_tokens has shape {tokens.shape}; expected that of {guesser}_logprobs, {logprobs.shape}"
        )
    if not np.isfinite(logprobs).all():
        raise ValueError(f"{guesser}_logprobs holds NaN or infinity; expected finite log-probs")
    if logprobs.size and logprobs.max() > _ROUNDING:
        raise ValueError(f"{guesser}_logprobs holds {logprobs.max():.6g}; expected log-probs, which are at most 0")
    if (logprobs[..., 1:] > logprobs[..., :-1]).any():
        raise ValueError(f"{guesser}_logprobs rises along a row; expected the best candidate first")


def _check_column(name: str, column: np.ndarray, *, rows: int, dimensions: int = 1, kinds: str = "iu") -> None:
    if column.dtype.kind not in kinds:
        raise ValueError(f"{name} has type {column.dtype}")
    if column.ndim != dimensions or len(column) != rows:
        raise ValueError(f"{name} has shape {column.shape}; expected {dimensions} dimensions, {rows} rows")
    if kinds != "f" and column.size and not 0 <= column.min() <= column.max() <= _MOST_TOKEN_ID:
        wrong = column.min() if column.min() < 0 else column.max()
        raise ValueError(f"{name} holds {wrong}; expected whole numbers from 0 to {_MOST_TOKEN_ID}")
