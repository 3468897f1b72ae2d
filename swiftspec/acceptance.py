"""AcceptanceTrace: how a real draft ranks a real target's own output. Recorded once, replayed by the simulator."""

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from pydantic import Field

from swiftspec.documents import Document, Facts, ModelRef, Origin, write_atomically

__all__ = ["AcceptanceTrace", "TracedPrompt"]

# Dimensions of every array in the file; T and K as in TracedPrompt, all prompts one after another.
_COLUMNS = {"target_tokens": 1, "draft_tokens": 2, "draft_logprobs": 2, "ranks": 1}
_ARRAYS = {"about", "lengths", "prompt_lengths", "prompt_tokens", *_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPrompt:
    """One prompt. T output tokens, K candidates.

    Parameters
    ----------
    prompt_id : str
    prompt_tokens : int32 array (P,)
        At least one.
    target_tokens : int32 array (T,)
        The target's own greedy output.
    draft_tokens, draft_logprobs : int32, float32 arrays (T, K)
        The draft's K best tokens for output position t given everything before it, best first, and log-probs (nats).
    ranks : int32 array (T,)
        Rank of the target's token in the draft's whole vocabulary; 0 is the draft's first choice.
    ended : bool
        Whether the last token is an end of sequence, and not the limit.
    """

    prompt_id: str
    prompt_tokens: np.ndarray
    target_tokens: np.ndarray
    draft_tokens: np.ndarray
    draft_logprobs: np.ndarray
    ranks: np.ndarray
    ended: bool

    @property
    def prompt_length(self) -> int:
        return len(self.prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceTrace:
    """Traced prompts of one model pair; `source` is recorded or synthesised."""

    origin: Origin
    source: str
    target: ModelRef
    draft: ModelRef
    prompts: tuple[TracedPrompt, ...]

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("prompts is empty; a trace needs at least one")

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt.target_tokens) for prompt in self.prompts)

    def rank_acceptance(self, num_ranks: int) -> list[float]:
        """Share of output tokens that are the draft's first choice, second choice, ..."""
        ranks = np.concatenate([prompt.ranks for prompt in self.prompts])
        return [float(np.mean(ranks == rank)) for rank in range(num_ranks)]

    def save(self, path: Path) -> None:
        """An .npz archive, written whole or not at all."""
        about = _About(
            origin=self.origin,
            source=self.source,
            target=self.target,
            draft=self.draft,
            prompts=tuple(_PromptFacts(prompt_id=p.prompt_id, ended=p.ended) for p in self.prompts),
        )
        arrays: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in self.prompts]) for name in _COLUMNS}
        arrays["lengths"] = np.array([len(prompt.target_tokens) for prompt in self.prompts])
        arrays["prompt_lengths"] = np.array([prompt.prompt_length for prompt in self.prompts])
        arrays["prompt_tokens"] = np.concatenate([prompt.prompt_tokens for prompt in self.prompts])
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=np.array(about.to_json()), **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "AcceptanceTrace":
        """ValueError, one sentence naming file and field, for anything that is not such a trace."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
        # Whatever numpy and zipfile raise for bytes that are no archive; NotImplementedError is an unknown compression.
        except (ValueError, TypeError, EOFError, KeyError, NotImplementedError, BadZipFile, zlib.error) as error:
            raise ValueError(f"{path}: not an acceptance trace (.npz)") from error
        if missing := _ARRAYS - arrays.keys():
            raise ValueError(f"{path}: {min(missing)} is missing")
        try:
            content = json.loads(str(arrays["about"]))
        except ValueError as error:
            raise ValueError(f"{path}: about is not a JSON document ({error})") from error
        about = _About.parse(content, source=str(path))
        try:
            _check(arrays, len(about.prompts))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(
            origin=about.origin,
            source=about.source,
            target=about.target,
            draft=about.draft,
            prompts=tuple(_split(about.prompts, arrays)),
        )


class _PromptFacts(Facts):
    prompt_id: str
    ended: bool


class _About(Document):
    """What the file says beside its arrays."""

    schema_name: ClassVar[str] = "swiftspec.acceptance-trace"
    schema_version: ClassVar[int] = 2

    source: str
    target: ModelRef
    draft: ModelRef
    prompts: tuple[_PromptFacts, ...] = Field(min_length=1)


def _split(prompts: Sequence[_PromptFacts], arrays: Mapping[str, np.ndarray]) -> list[TracedPrompt]:
    of_prompt = [*pairwise(np.cumsum([0, *arrays["prompt_lengths"].tolist()]).tolist())]
    of_output = [*pairwise(np.cumsum([0, *arrays["lengths"].tolist()]).tolist())]
    return [
        TracedPrompt(
            prompt_id=facts.prompt_id,
            prompt_tokens=arrays["prompt_tokens"][before:after],
            target_tokens=arrays["target_tokens"][start:stop],
            draft_tokens=arrays["draft_tokens"][start:stop],
            draft_logprobs=arrays["draft_logprobs"][start:stop],
            ranks=arrays["ranks"][start:stop],
            ended=facts.ended,
        )
        for facts, (before, after), (start, stop) in zip(prompts, of_prompt, of_output, strict=True)
    ]


def _check(arrays: Mapping[str, np.ndarray], num_prompts: int) -> None:
    for name, least in (("lengths", 0), ("prompt_lengths", 1)):
        counts = arrays[name]
        if counts.shape != (num_prompts,) or counts.dtype.kind not in "iu" or counts.min() < least:
            raise ValueError(f"{name} is {counts.tolist()}; expected {num_prompts} token counts of {least} or more")
    _check_columns(arrays)
    tokens, logprobs, ranks = arrays["draft_tokens"], arrays["draft_logprobs"], arrays["ranks"]
    if tokens.shape != logprobs.shape:
        raise ValueError(f"draft_tokens has shape {tokens.shape}; expected that of draft_logprobs, {logprobs.shape}")
    if not np.isfinite(logprobs).all():
        raise ValueError("draft_logprobs holds NaN or infinity; expected finite log-probs")
    if (np.diff(logprobs, axis=1) > 0).any():
        raise ValueError("draft_logprobs rises along a row; expected the best candidate first")
    if (ranks < 0).any():
        raise ValueError(f"ranks holds {ranks.min()}; expected 0 or more")


def _check_columns(arrays: Mapping[str, np.ndarray]) -> None:
    num_outputs, num_inputs = arrays["lengths"].sum(), arrays["prompt_lengths"].sum()
    expected = {name: (dimensions, num_outputs) for name, dimensions in _COLUMNS.items()}
    for name, (dimensions, rows) in (expected | {"prompt_tokens": (1, num_inputs)}).items():
        column = arrays[name]
        if column.dtype.kind not in ("f" if name == "draft_logprobs" else "iu"):
            raise ValueError(f"{name} has type {column.dtype}")
        if column.ndim != dimensions or len(column) != rows:
            raise ValueError(f"{name} has shape {column.shape}; expected {dimensions} dimensions, {rows} rows")
