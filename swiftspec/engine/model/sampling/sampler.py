"""Tokens from logits: the target's choice, greedy or sampled, and the draft's candidates. No model, no state.

R rows, V vocabulary.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from ctypes import Array, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from swiftspec.errors import FieldError
from swiftspec.kernels.cpu_library import Library, loaded_library

if TYPE_CHECKING:  # a caller that only sets parameters does not wait seconds for torch
    from torch import Tensor

GREEDY_BELOW = 1e-5  # as vLLM: logits over a temperature of 1e-38 are infinite, and over 1e-7 the noise is rounded away
_NUCLEUS_GUESS = 256
# Nats by which a guess is less likely where filters exclude it from the other model's law; of 2, 3 and 5, the second
# best for one guess and for four of them (bundled pair, three usual settings).
_SURPRISE = 3.0
_NOISE_AT_ONCE = 1 << 16  # numbers: for one position of 4096 tokens, most of the time would go into seeding
_MOST_CANDIDATES = 64  # the kernel inserts one by one
_MOST_NOISE_KEPT = 32  # times so many: 8 MB, 16 MB of the largest vocabularies
_MOST_BIAS = 100.0  # as of OpenAI's API
_SEED_BITS = 48  # exact in every JSON reader

AcceptanceMethod = Literal["follow", "residual"]
Floats = np.ndarray[Any, np.dtype[np.float32]]


class Sampling(TypedDict, total=False):
    """How tokens are drawn, as keyword arguments of `Engine.generate`."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    logit_bias: Mapping[int, float]
    num_log_probs: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Chooses the target's token at each row. Temperature 0 is greedy, and so is one below `GREEDY_BELOW`.

    Otherwise the token is drawn by the Gumbel-max rule with noise that depends only on seed and position, so that the
    same text gets the same next token whichever policy, tree or batch computes the row.

    top_p: keep the fewest most likely tokens that together reach this share, and ties with the last of them; above 0 up
        to 1 (1 = all).
    top_k: keep the `top_k` most likely tokens and ties with the last of them (0 = all). Applied before `top_p`.
    min_p: keep the tokens that are at least this share as likely as the likeliest one; 0 to 1 (0 = all). Applied first.
    acceptance: "follow" or "residual". Accept a draft token when the target draws the same (`follow`), or by both
        models' probabilities (`residual`, see `rejection_sampler`). Equivalent at temperature 0.
    logit_bias: tuple of (int, float). Token ids, and what is added to the target's logit of each.
    barred: token ids that the target cannot choose at rows before `barred_before`: ends of an output with a least
        length.
    barred_before: position of the first row at which it can.
    num_log_probs: likeliest tokens that are told beside each token of the output, with its own log-prob; None: no
        log-probs.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    acceptance: AcceptanceMethod = "follow"
    logit_bias: tuple[tuple[int, float], ...] = ()
    barred: tuple[int, ...] = ()
    barred_before: int = 0
    num_log_probs: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; expected 0 or a positive number")
        if self.temperature < GREEDY_BELOW:
            object.__setattr__(self, "temperature", 0.0)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; expected a number above 0 and up to 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; expected 0 (all tokens) or a positive integer")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p is {self.min_p}; expected 0 (all tokens) to 1")
        if not all(abs(bias) <= _MOST_BIAS for _, bias in self.logit_bias):
            raise ValueError(
                f"logit_bias is {dict(self.logit_bias)}; expected numbers from {-_MOST_BIAS} to {_MOST_BIAS}"
            )
        if self.num_log_probs is not None and self.num_log_probs < 0:
            raise ValueError(f"num_log_probs is {self.num_log_probs}; expected 0 or more")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed is {self.seed}; expected 0 to 2**64 - 1")
        if self.acceptance not in get_args(AcceptanceMethod):
            raise FieldError(
                "acceptance",
                repr(self.acceptance),
                f"expected {' or '.join(get_args(AcceptanceMethod))}",
            )

    @property
    def needs_draft_probabilities(self) -> bool:
        """Whether the target's choice depends on the draft's probabilities of its proposals."""
        return self.acceptance == "residual" and self.temperature > 0.0

    def choose(self, logits: Tensor, positions: Sequence[int]) -> list[int]:
        """Token of each row, given logits [R, V] in fp32 and the position of each row."""
        if logits.shape[0] != len(positions):
            raise ValueError(f"positions are {len(positions)}; expected one for each of {logits.shape[0]} rows")
        logits = self.changed(logits, positions)
        if self.temperature > 0.0:
            library = None if self._filters else _kernels_of(logits)
            return self._drawn(library, logits, positions) if library else self.draw(self.scores(logits), positions)
        if logits.device.type != "cpu":
            chosen: list[int] = logits.argmax(dim=-1).tolist()
            return chosen
        return _likeliest(logits.numpy())

    def changed(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """The target's logits [R, V] with the biases, and without the tokens that are barred at a row's position."""
        early = [row for row, position in enumerate(positions) if position < self.barred_before] if self.barred else []
        if not self.logit_bias and not early:
            return logits
        logits = logits.clone()
        if self.logit_bias:
            tokens, biases = zip(*self.logit_bias, strict=True)
            logits[:, list(tokens)] += logits.new_tensor(biases)
        for row in early:
            logits[row, list(self.barred)] = -np.inf
        return logits

    def scores(self, logits: Tensor) -> Tensor:
        """Log-probs [R, V], up to a constant per row, that a positive temperature draws from; on the host."""
        return self._filtered(logits / self.temperature).cpu()

    def draw(self, scores: Tensor, positions: Sequence[int]) -> list[int]:
        """A token of each row by its scores [R, V] and the noise of its position."""
        return _likeliest(scores.numpy() + np.stack(self._noise(positions, scores.shape[1])))

    def _drawn(self, library: Library, logits: Tensor, positions: Sequence[int]) -> list[int]:
        num_rows, num_tokens = logits.shape
        noise = self._noise(positions, num_tokens)
        tokens = np.empty(num_rows, dtype=np.int32)
        addresses = logits.data_ptr(), _addresses(noise)
        library.draw(*addresses, self.temperature, num_rows, num_tokens, tokens.ctypes.data)
        return tokens.tolist()

    def guesses(self, logits: Tensor, positions: Sequence[int], k: int) -> tuple[list[list[int]], list[list[float]]]:
        """The `k` best guesses of what the target chooses by another model's logits, as `top_candidates`."""
        if self._filters or not self.temperature:
            return top_candidates(self.with_noise(logits, positions), k)
        return top_candidates(logits, k, noise=self._noise(positions, logits.shape[1]), temperature=self.temperature)

    def with_noise(self, logits: Tensor, positions: Sequence[int]) -> Tensor:
        """Another model's logits [R, V] for guesses of what the target chooses: the largest is the best guess.

        The noise of the target's draws is known, so that a guess is the other model's own draw with it. Two such draws
        are equal with a probability of (1 - d) / (1 + d) or more, d being the total variation distance of both laws
        (Daliri et al., arXiv 2408.07978), where the likeliest token is drawn with its own probability only.
        """
        if self.temperature == 0.0:
            return logits
        import torch

        scores = (logits / self.temperature).cpu()
        if self._filters:  # the target's need not exclude just the same tokens
            scores = torch.maximum(self._filtered(scores), scores - _SURPRISE)
        return self.add_noise(scores, positions)

    def add_noise(self, scores: Tensor, positions: Sequence[int]) -> Tensor:
        """Scores [R, V] with the noise of each row's position, in place."""
        noisy = scores.numpy()
        for row, noise in enumerate(self._noise(positions, scores.shape[1])):
            noisy[row] += noise
        return scores

    def _noise(self, positions: Sequence[int], vocab_size: int) -> list[Floats]:
        num_positions = max(1, _NOISE_AT_ONCE // vocab_size)
        places = [divmod(position, num_positions) for position in positions]
        return [_noise(self.seed, block, num_positions, vocab_size)[place] for block, place in places]

    @property
    def _filters(self) -> bool:
        """Whether any token is excluded."""
        return self.min_p > 0.0 or self.top_k > 0 or self.top_p < 1.0

    def _filtered(self, scores: Tensor) -> Tensor:
        """Scores with the tokens that min-p, top-k and then top-p exclude at minus infinity."""
        if self.min_p > 0.0:
            scores = scores.masked_fill(scores < scores.amax(dim=-1, keepdim=True) + log(self.min_p), -np.inf)
        if 0 < self.top_k < scores.shape[1]:
            last_kept = scores.topk(self.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < last_kept, -np.inf)
        if self.top_p < 1.0:
            shares = scores.softmax(dim=-1)
            scores = scores.masked_fill(shares < _smallest_kept_share(shares, self.top_p), -np.inf)
        return scores


def sampler_of(
    sampling: Sampling, acceptance: AcceptanceMethod = "follow", *, barred: Iterable[int] = (), barred_before: int = 0
) -> Sampler:
    """A sampler as a caller describes it, with a random seed if there is none. TypeError for an unknown keyword."""
    seed = sampling.get("seed")
    given: dict[str, Any] = {**sampling, "seed": secrets.randbits(_SEED_BITS) if seed is None else seed}
    given["logit_bias"] = tuple(sampling.get("logit_bias", {}).items())
    return Sampler(**given, acceptance=acceptance, barred=tuple(barred), barred_before=barred_before)


def stream(seed: int, position: int, *, use: int = 0) -> np.random.Generator:
    """A counter-based generator keyed by seed and position; different uses of the same key are independent."""
    key, counter = np.array([seed, position], dtype=np.uint64), np.array([0, 0, 0, use], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@lru_cache(maxsize=_MOST_NOISE_KEPT)
def _noise(seed: int, block: int, num_positions: int, vocab_size: int) -> Floats:
    """Noise of consecutive positions. Draft and target need it in turn if they are in one process."""
    return gumbel(np.random.Generator(np.random.SFC64((seed, block))), (num_positions, vocab_size))


def gumbel(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Standard Gumbel noise. numpy's logarithm is faster than its exponential distribution."""
    noise: Floats = generator.random(shape, dtype=np.float32)
    with np.errstate(divide="ignore"):  # a zero is a token that is not drawn
        for _ in range(2):
            np.log(noise, out=noise)
            np.negative(noise, out=noise)
    return noise


def _likeliest(scores: Floats) -> list[int]:
    # numpy's argmax: torch's is not vectorised and takes nine times as long.
    chosen: list[int] = scores.argmax(axis=-1).tolist()
    return chosen


def _smallest_kept_share(shares: Tensor, top_p: float) -> Tensor:
    """Share [R, 1] of the last token needed to reach `top_p`, in descending order."""
    vocab_size = shares.shape[1]
    # The top few hundred nearly always reach top_p; sorting a whole vocabulary takes several times as long.
    for count in (min(_NUCLEUS_GUESS, vocab_size), vocab_size):
        ordered = shares.topk(count, dim=-1).values
        reached_before = (ordered.cumsum(dim=-1) - ordered) >= top_p
        if count == vocab_size or bool(reached_before[:, -1].all()):
            break
    num_kept = (~reached_before).sum(dim=-1, keepdim=True).clamp_(min=1)
    return ordered.gather(1, num_kept - 1)


def top_candidates(
    logits: Tensor, k: int, *, noise: Sequence[Floats] = (), temperature: float = 1.0
) -> tuple[list[list[int]], list[list[float]]]:
    """Token ids and log-probs (natural, temperature 1) of the `k` most likely tokens of each row, in descending order.

    Logits are [R, V] in fp32; k is cut to V. If there is noise [V] for each row: by logits / temperature + noise. Of
    equally likely tokens the first, where the CPU's kernels find them.
    """
    num_rows, num_tokens = logits.shape
    k = min(k, num_tokens)
    library = _kernels_of(logits)
    if library is None or k > _MOST_CANDIDATES:
        if noise:
            logits = (logits / temperature).cpu() + logits.new_tensor(np.stack(noise), device="cpu")
        best = logits.log_softmax(dim=-1).topk(k, dim=-1)
        return best.indices.tolist(), best.values.tolist()
    tokens, log_probs = np.empty((num_rows, k), dtype=np.int32), np.empty((num_rows, k), dtype=np.float32)
    found = tokens.ctypes.data, log_probs.ctypes.data
    of_rows = _addresses(noise) if noise else None
    library.top_candidates(logits.data_ptr(), of_rows, temperature, num_rows, num_tokens, k, *found)
    return tokens.tolist(), log_probs.tolist()


def _kernels_of(logits: Tensor) -> Library | None:
    is_readable = logits.device.type == "cpu" and logits.is_contiguous() and logits.element_size() == 4
    return loaded_library() if is_readable else None


def _addresses(noise: Sequence[Floats]) -> Array[c_void_p]:
    return (c_void_p * len(noise))(*[each.ctypes.data for each in noise])


def log_probs(logits: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """Log-prob (natural, temperature 1) of a token for each row of logits [R, V] in fp32."""
    import torch

    chosen = torch.tensor(tokens, device=logits.device).unsqueeze(1)
    found: list[float] = logits.log_softmax(dim=-1).gather(1, chosen).squeeze(1).tolist()
    return tuple(found)
