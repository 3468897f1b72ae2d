"""Recording of an AcceptanceTrace: the target decodes; at every position the draft's candidates are kept."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from swiftspec.artifacts.prompts import evenly
from swiftspec.artifacts.routes import route_bytes, smallest_routes
from swiftspec.artifacts.trace import GREEDY, AcceptanceTrace, Guesser, Guesses, SamplingParams, TracedPrompt
from swiftspec.engine.model.drafts.block_drafter import BlockRunner
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.forward_batch import Chunk, Entry, ForwardBatch, Model, Rows
from swiftspec.engine.model.models import Models, load_models
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.archives import MOST_ARCHIVE_BYTES
from swiftspec.files.document import ModelRef, Origin
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.inflation import inflated_spec
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import ForwardKind, Role, Row
from swiftspec.profiler.guesses_ahead import NUM_AHEAD, head_guesses, masked_guesses
from swiftspec.progress import Progress

_Ask = Callable[[Model, Rows], torch.Tensor]
_log = logging.getLogger("swiftspec")
_LEAST_PROMPTS = 4  # traced, however long they take
_SEQUENCE = 0  # one prompt after another
_TREE_SLOTS = 64
_FEW_CANDIDATES = 8  # of guessers that no policy asks for more
_FUZZY_ROWS = 4  # at most this many tokens since the last exact forward; every depth up to it has the same weight


@torch.inference_mode()
def record_trace(
    *,
    target: ModelRef,
    draft: ModelRef,
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    max_new_tokens: int,
    num_candidates: int,
    num_threads: int,
    progress: Progress,
    sampling: SamplingParams = GREEDY,
    outputs: Sequence[Sequence[int]] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> AcceptanceTrace:
    """Run both models once over `prompts`, pairs of id and token ids.

    stop: asked between prompts whether time has run out; the prompts until then are spread evenly over all.

    sampling: how the target's output is drawn.

    outputs: the target's output after each prompt, if it is already known; it is then not decoded again, and
    `max_new_tokens` is an upper bound on its length.

    ValueError: if a model cannot be loaded or its logits are not finite, if a prompt with its output does not fit the
    context, or if the trace would be too large to be read again.
    """
    torch.set_num_threads(num_threads)
    spec = inflated_spec(target)
    facts = draft_facts(draft.model)
    num_ahead = 0 if facts.kind is DraftKind.SERIAL else NUM_AHEAD
    _check_room(len(prompts), max_new_tokens, num_candidates, num_ahead, spec)
    longest = 0
    for prompt_id, prompt in prompts:
        longest = max(longest, len(prompt))
        if len(prompt) + max_new_tokens > spec.max_position:
            raise ValueError(
                f"prompt {prompt_id}: {len(prompt)} tokens with {max_new_tokens} output tokens "
                f"exceed the target's context of {spec.max_position}"
            )
    models = load_models(
        {Role.TARGET: target, Role.DRAFT: draft}, max_context=longest + max_new_tokens, tree_slots=_TREE_SLOTS
    )
    if all(model.has_own_threads for model in models.values()):
        torch.set_num_threads(1)
    traced: dict[int, TracedPrompt] = {}
    for number in evenly(len(prompts)):
        if len(traced) >= _LEAST_PROMPTS and stop():
            break
        prompt_id, prompt = prompts[number]
        sampler = Sampler(**sampling.of_prompt(number))
        progress(len(traced), len(prompts), f"prompt {prompt_id}")
        if outputs is None:
            with _blamed(target, prompt_id):
                output = _decoded(models[Role.TARGET], prompt, max_new_tokens, frozenset(spec.eos_token_ids), sampler)
        else:
            output = list(outputs[number])
        with _blamed(draft, prompt_id):
            found = _traced(models, prompt_id, prompt, output, num_candidates, spec, sampler)
            if num_ahead:
                found = replace(found, ahead=_ahead(models[Role.DRAFT], found, facts.mask_token, sampler))
            traced[number] = found
    if len(traced) < len(prompts):
        _log.warning(
            "the models are slow: %d of %d prompts were traced; --num-prompts traces as many as it says",
            len(traced),
            len(prompts),
        )
    progress(len(prompts), len(prompts), "done")
    return AcceptanceTrace(
        origin=Origin.here(),
        source="recorded",
        target=target,
        draft=draft,
        draft_kind=facts.kind,
        num_experts=spec.experts.num_experts if spec.experts else 0,
        sampling=sampling,
        prompts=tuple(traced[number] for number in sorted(traced)),
    )


def _check_room(num_prompts: int, max_new_tokens: int, num_candidates: int, num_ahead: int, spec: ModelSpec) -> None:
    """ValueError if the trace could exceed the size that `AcceptanceTrace.load` reads."""
    few = min(_FEW_CANDIDATES, num_candidates)
    # Token and rank; tokens and log-probs of three guessers, and of guesses ahead.
    token_bytes = 4 + 4 + 8 * (num_candidates + (2 + num_ahead) * few)
    if (experts := spec.experts) is not None:
        token_bytes += route_bytes(
            num_layers=spec.num_layers, num_experts=experts.num_experts, num_active=experts.num_active
        )
    most = MOST_ARCHIVE_BYTES // token_bytes
    if num_prompts * max_new_tokens > most:
        raise ValueError(
            f"--max-new-tokens is {max_new_tokens} for {num_prompts} prompts; a trace has room for {most} output "
            "tokens: expected fewer, or --num-prompts"
        )


@contextmanager
def _blamed(model: ModelRef, prompt_id: str) -> Iterator[None]:
    try:
        yield
    except FloatingPointError:
        raise ValueError(
            f"{model.model}: its logits are not finite for prompt {prompt_id}; is its checkpoint damaged?"
        ) from None


def _numbers(logits: torch.Tensor) -> torch.Tensor:
    # The largest is NaN if any logit is; if it is infinite, the log-probs are NaN.
    if not logits.max().isfinite():
        raise FloatingPointError
    return logits


def _traced(
    models: Models,
    prompt_id: str,
    prompt: tuple[int, ...],
    output: list[int],
    num_candidates: int,
    spec: ModelSpec,
    sampler: Sampler,
) -> TracedPrompt:
    few = min(_FEW_CANDIDATES, num_candidates)
    text, target, draft = (prompt, output), models[Role.TARGET], models[Role.DRAFT]
    chosen: list[torch.Tensor] = []  # experts of both halves, if the target has any

    def halfway(model: Model, rows: Rows) -> torch.Tensor:
        logits = _logits(model, rows, ForwardKind.FIRST_HALF)
        _logits(model, rows, ForwardKind.SECOND_HALF)
        if isinstance(model, ModelRunner) and (routes := model.routes()) is not None:
            chosen.append(routes)
        return logits

    # First the target, whose cache then holds what a head reads.
    half, _ = _guesses(target, text, halfway, sampler, rows=_TREE_SLOTS, num_candidates=few)
    # A block drafter answers after one token at a time.
    rows = 1 if isinstance(draft, BlockRunner) else _TREE_SLOTS
    best, ranks = _guesses(draft, text, _logits, sampler, rows=rows, num_candidates=num_candidates)
    guesses = {Guesser.DRAFT: best, Guesser.EXIT: half}
    if not isinstance(draft, HeadRunner | BlockRunner):
        guesses[Guesser.FUZZY], _ = _guesses(draft, text, _fuzzily, sampler, rows=_FUZZY_ROWS, num_candidates=few)
    routes = None
    if spec.experts:
        of_rows = torch.cat(chosen, dim=1).transpose(0, 1).numpy()  # [rows, layers, k]
        routes = smallest_routes(of_rows, num_experts=spec.experts.num_experts)
    return TracedPrompt(
        prompt_id=prompt_id,
        prompt_tokens=np.array(prompt, np.int32),
        target_tokens=np.array(output, np.int32),
        guesses=guesses,
        ranks=ranks,
        ended=output[-1] in spec.eos_token_ids,
        routes=routes,
    )


def _ahead(draft: Model, traced: TracedPrompt, mask_token: int, sampler: Sampler) -> Guesses:
    """Guesses of a head on its own, or of a parallel draft at masks.

    The cache of the latter is moved along the text as these are asked for.
    """
    prompt, output = traced.prompt_tokens.tolist(), traced.target_tokens.tolist()
    text, few = [*prompt, *output], _FEW_CANDIDATES
    nearest = Guesses(traced.draft.tokens[:, :few], traced.draft.logprobs[:, :few])
    if isinstance(draft, HeadRunner):
        return head_guesses(draft, prompt, nearest, output, sampler=sampler, tree_slots=_TREE_SLOTS)
    draft.reset(_SEQUENCE)
    num_known = 0

    def forward(rows: tuple[Row, ...], start: int) -> torch.Tensor:
        nonlocal num_known
        if start > num_known:
            _logits(draft, Chunk(_SEQUENCE, tuple(text[num_known:start])))
            num_known = start
        logits = _numbers(_logits(draft, Rows(_SEQUENCE, rows)))
        draft.keep(_SEQUENCE, (), 0)
        return sampler.with_noise(logits, [row.position for row in rows])

    slots = 1 + NUM_AHEAD if isinstance(draft, BlockRunner) else _TREE_SLOTS
    return masked_guesses(forward, prompt, nearest, output, mask_token=mask_token, tree_slots=slots)


def _logits(model: Model, entry: Entry, kind: ForwardKind = ForwardKind.EXACT) -> torch.Tensor:
    return model.forward(ForwardBatch(kind, (entry,))).logits[0]


def _decoded(
    model: Model, prompt: tuple[int, ...], max_new_tokens: int, ends: frozenset[int], sampler: Sampler
) -> list[int]:
    model.reset(_SEQUENCE)
    position = len(prompt) - 1
    output = sampler.choose(_numbers(_logits(model, Chunk(_SEQUENCE, prompt))), [position])
    while len(output) < max_new_tokens and output[-1] not in ends:
        position += 1
        row = Row(output[-1], position, 0)
        output += sampler.choose(_numbers(_logits(model, Rows(_SEQUENCE, (row,)))), [position])
        model.keep(_SEQUENCE, (0,), 1)
    return output


def _fuzzily(model: Model, rows: Rows) -> torch.Tensor:
    """Fuzzy forward of a draft that is calibrated before these rows; later forwards see exact KV."""
    logits = _logits(model, rows, ForwardKind.LAYER_PARALLEL)
    model.keep(_SEQUENCE, (), 0)
    _logits(model, rows)
    return logits


def _guesses(
    model: Model,
    text: tuple[tuple[int, ...], list[int]],
    ask: _Ask,
    sampler: Sampler,
    *,
    rows: int,
    num_candidates: int,
) -> tuple[Guesses, np.ndarray]:
    """Best tokens and log-probs at every output position, and the rank of the target's token; `rows` at a time."""
    prompt, output = text
    model.reset(_SEQUENCE)
    if len(prompt) > 1:
        _logits(model, Chunk(_SEQUENCE, prompt[:-1]))
    context = [prompt[-1], *output[:-1]]
    tokens, logprobs, ranks = [], [], []
    for start in range(0, len(context), rows):
        chunk = context[start : start + rows]
        chain = tuple(Row(token, len(prompt) - 1 + start + i, (1 << i) - 1) for i, token in enumerate(chunk))
        logits = _numbers(ask(model, Rows(_SEQUENCE, chain)))
        logits = sampler.with_noise(logits, [row.position for row in chain])
        model.keep(_SEQUENCE, tuple(range(len(chain))), len(chain))
        best = logits.log_softmax(-1).topk(min(num_candidates, logits.shape[-1]), dim=-1)
        wanted = logits.gather(1, torch.tensor(output[start : start + rows])[:, None])
        tokens.append(best.indices.numpy().astype(np.int32))
        logprobs.append(best.values.numpy().astype(np.float32))
        ranks.append((logits > wanted).sum(-1).numpy().astype(np.int32))
    return Guesses(np.concatenate(tokens), np.concatenate(logprobs)), np.concatenate(ranks)
