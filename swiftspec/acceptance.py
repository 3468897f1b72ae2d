"""AcceptanceTrace: how a real draft ranks a real target's own output. Recorded once, replayed by the simulator."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from swiftspec.documents import ModelRef, Origin, write_atomically

__all__ = ["AcceptanceTrace", "TracedPrompt"]

_SCHEMA, _VERSION = "swiftspec.acceptance-trace", 1
_COLUMNS = ("target_tokens", "draft_tokens", "draft_logprobs", "ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPrompt:
    """One prompt. T output tokens, K candidates.

    Parameters
    ----------
    prompt_id : str
    prompt_length : int
        Tokens.
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
    prompt_length: int
    target_tokens: np.ndarray
    draft_tokens: np.ndarray
    draft_logprobs: np.ndarray
    ranks: np.ndarray
    ended: bool


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
        about = {
            "schema": _SCHEMA,
            "version": _VERSION,
            "source": self.source,
            "origin": self.origin.model_dump(),
            "target": self.target.model_dump(),
            "draft": self.draft.model_dump(),
            "prompts": [
                {"prompt_id": p.prompt_id, "prompt_length": p.prompt_length, "ended": p.ended} for p in self.prompts
            ],
        }
        arrays = {name: np.concatenate([getattr(p, name) for p in self.prompts]) for name in _COLUMNS}
        lengths = np.array([len(prompt.target_tokens) for prompt in self.prompts])
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=np.array(json.dumps(about)), lengths=lengths, **arrays)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "AcceptanceTrace":
        """ValueError, one sentence naming file and field, for anything that is not such a trace."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                contents = {name: archive[name] for name in archive.files}
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
        except (ValueError, BadZipFile) as error:
            raise ValueError(f"{path}: not an acceptance trace (.npz)") from error
        try:
            return _parsed(contents)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error} is missing or malformed") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _parsed(contents: dict[str, np.ndarray]) -> AcceptanceTrace:
    about = json.loads(str(contents["about"]))
    if (about.get("schema"), about.get("version")) != (_SCHEMA, _VERSION):
        found = f"{about.get('schema')!r} version {about.get('version')!r}"
        raise ValueError(f"schema is {found}; expected {_SCHEMA!r} version {_VERSION}")
    columns = {name: contents[name] for name in _COLUMNS}
    lengths = contents["lengths"].tolist()
    _check(columns, lengths, about["prompts"])
    starts = np.cumsum([0, *lengths])
    prompts = [
        TracedPrompt(**facts, **{name: column[start:stop] for name, column in columns.items()})
        for facts, start, stop in zip(about["prompts"], starts, starts[1:], strict=False)
    ]
    return AcceptanceTrace(
        origin=Origin(**about["origin"]),
        source=about["source"],
        target=ModelRef(**about["target"]),
        draft=ModelRef(**about["draft"]),
        prompts=tuple(prompts),
    )


def _check(columns: dict[str, np.ndarray], lengths: Sequence[int], prompts: Sequence[object]) -> None:
    if len(lengths) != len(prompts):
        raise ValueError(f"lengths has {len(lengths)} entries for {len(prompts)} prompts")
    for name, column in columns.items():
        if len(column) != sum(lengths):
            raise ValueError(f"{name} has {len(column)} rows; expected {sum(lengths)}")
    if not np.isfinite(columns["draft_logprobs"]).all():
        raise ValueError("draft_logprobs holds NaN or infinity; expected finite log-probs")
    if columns["draft_tokens"].shape != columns["draft_logprobs"].shape:
        raise ValueError(f"draft_tokens has shape {columns['draft_tokens'].shape}; expected that of draft_logprobs")
