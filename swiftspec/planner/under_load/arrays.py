"""A load under an engine's step rule: between arrivals and ends nothing changes but counters.

Steps are formed by `scheduler.step_rules`, prompts are matched by `scheduler.prefix_cache`, and a step's seconds come
from whoever calls. A request is a number; only arrivals, prompts and ends cost more than a few additions.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np

from swiftspec.costmodel.steps import StepWork
from swiftspec.planner.under_load.decoding import ChainedDecoding, Chains, PlainDecoding
from swiftspec.planner.under_load.loads import ArrayRun, Requests
from swiftspec.scheduler.prefix_cache import PrefixCache, Segment
from swiftspec.scheduler.step_rules import StepRule, form_step

_ALIKE: Final = 0.1  # growth of the caches over which steps are taken as alike


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnderLoad:
    """What decides how a load is served.

    step_tokens, max_requests: limits of a step, and of requests at once.
    ranks: ranks of attention in data parallel, which share a step's tokens: of one prompt it reads one rank's.
    prompt_wait: steps that prompts wait, at most, until there is one for every rank.
    cache_tokens: tokens that the KV cache has room for.
    runs_ahead: whether the next step is formed while one runs.
    step_s: seconds of a step, the engine's own time included.
    request_s, prompt_token_s, token_s: above the engine, as in `engines.constants`.
    chains: without, one token is decoded at a time.
    """

    rule: StepRule
    step_tokens: int
    max_requests: int
    cache_tokens: int
    runs_ahead: bool
    step_s: Callable[[StepWork], float]
    request_s: float
    prompt_token_s: float
    token_s: float
    prefixes: PrefixCache
    chains: Chains | None = None
    ranks: int = 1
    prompt_wait: int = 0

    def read_at_once(self, tokens: int) -> int:
        """Tokens of a prompt with so many left that a step reads, if it has room."""
        return min(tokens, self.step_tokens // self.ranks)


def simulate(requests: Requests, engine: EngineUnderLoad, *, seed: int = 0) -> ArrayRun:
    """Serve all requests. The seed draws which recorded rounds each one has, if it drafts."""
    return _Run(requests, engine, np.random.default_rng(seed)).run()


@dataclass
class _Prompt:
    number: int
    left: int
    read: int
    written: int  # tokens of output that it had before it gave way


@dataclass
class _Run:
    """State of a simulation: counters of those who decode, and objects for prompts alone."""

    requests: Requests
    engine: EngineUnderLoad
    rng: np.random.Generator
    now_s: float = 0.0
    formed_s: float = 0.0  # when the step that starts now was formed
    waiting: deque[_Prompt] = field(default_factory=deque)
    reading: list[_Prompt] = field(default_factory=list)
    num_done: int = 0
    num_steps: int = 0
    running_s: float = 0.0
    busy_s: float = 0.0
    draft_s: float = 0.0
    num_waited: int = 0  # steps for which prompts have waited for those of other ranks
    own_tokens: int = 0  # of prompts and outputs that nobody shares, those in place and those being read

    def run(self) -> ArrayRun:
        count = len(self.requests.output_tokens)
        self.first_s, self.end_s, self.begun_s = (np.zeros(count) for _ in range(3))
        self.arrival_s = np.array(self.requests.arrival_s, np.float64)
        chains = self.engine.chains
        self.decoding = ChainedDecoding(chains, self.rng) if chains else PlainDecoding()
        later = {turn.number for turn in self.requests.turns.values()}
        self.starts = (number for number in range(count) if number not in later)
        begun = islice(self.starts, self.requests.num_clients)
        self.arriving = [(self._queued_s(number), number) for number in begun]
        heapq.heapify(self.arriving)
        self.is_begun = np.zeros(count, bool)
        self.preemptions = np.zeros(count, np.int64)
        while self.num_done < count:
            self._step()
        return ArrayRun(
            arrival_s=self.arrival_s,
            queued_s=self.begun_s - self.arrival_s,
            ttft_s=self.first_s - self.arrival_s,
            e2e_s=self.end_s - self.arrival_s,
            output_tokens=self.requests.output_tokens,
            preemptions=self.preemptions,
            num_steps=self.num_steps,
            mean_running=self.running_s / self.busy_s if self.busy_s else 0.0,
            busy_s=self.busy_s,
            end_s=self.now_s,
            hit_rate=self.engine.prefixes.hit_rate,
            draft_s=self.draft_s,
        )

    def _queued_s(self, number: int) -> float:
        engine = self.engine
        above_s = engine.request_s + engine.prompt_token_s * float(self.requests.prompt_tokens[number])
        return float(self.arrival_s[number]) + above_s + (self.requests.transfer_s or 0.0)

    def _step(self) -> None:
        seen_s = self.formed_s if self.engine.runs_ahead else self.now_s
        while self.arriving and self.arriving[0][0] <= seen_s:
            _, number = heapq.heappop(self.arriving)
            self.waiting.append(_Prompt(number, int(self.requests.prompt_tokens[number]), 0, 0))
        decoding = self.decoding
        if not (decoding.count or self.reading or self.waiting):
            # Idle: whoever comes next is seen at once.
            self.formed_s = self.now_s = max(self.now_s, self.arriving[0][0])
            return
        self._make_room()
        self._admit()
        waits = self._waits()
        formed = form_step(
            self.engine.rule,
            step_tokens=self.engine.step_tokens,
            decode_rows=decoding.count * decoding.rows,
            prompts=[] if waits else [self.engine.read_at_once(prompt.left) for prompt in self.reading],
        )
        granted = list(zip(self.reading, formed.chunks, strict=False))
        # Where prompts go first, ranks that have none decode meanwhile: all do, until each has a prompt.
        sequences = decoding.count if formed.decodes or len(granted) < self.engine.ranks else 0
        ending = sum(1 for prompt, tokens in granted if tokens == prompt.left)
        work = StepWork(
            sequences=sequences,
            rows_each=decoding.rows,
            cache_tokens=decoding.cache_tokens if sequences else 0,
            chunks=[(tokens, prompt.read) for prompt, tokens in granted],
            sampled=sequences * decoding.rows + ending,
        )
        # Nobody's tokens come faster than the process above sends them.
        told_s = self.engine.token_s * (sequences + ending)
        steps = 1
        if sequences and not granted and not waits and not self.waiting:
            steps, work = self._alike(work)
        draft_s = decoding.draft_s() if sequences else 0.0
        seconds = max(self.engine.step_s(work) + draft_s, told_s)
        self.now_s += steps * seconds
        self.formed_s = self.now_s - seconds
        self.num_steps += steps
        self.busy_s += steps * seconds
        self.draft_s += steps * draft_s
        self.running_s += steps * seconds * (sequences + len(granted))
        out_s = self.now_s + told_s
        if sequences:
            grown, ended = decoding.advance(steps)
            self.own_tokens += grown
            for each in ended:
                self._finish(each.number, out_s, each.cache_tokens)
        for prompt, tokens in granted:
            prompt.left -= tokens
            prompt.read += tokens
            if not prompt.left:
                self._begin(prompt, out_s)

    def _waits(self) -> bool:
        """Whether prompts wait until each rank has one, while all ranks decode."""
        few = 0 < len(self.reading) < self.engine.ranks <= self.decoding.count
        if not few or self.num_waited >= self.engine.prompt_wait:
            self.num_waited = 0
            return False
        self.num_waited += 1
        return True

    def _alike(self, work: StepWork) -> tuple[int, StepWork]:
        """How many steps there are before anybody comes, ends or has no room, and the one in their middle.

        Caches grow by at most a tenth meanwhile, so that the middle stands for all.
        """
        decoding, engine = self.decoding, self.engine
        room = engine.cache_tokens - self.own_tokens - engine.prefixes.num_tokens
        steps = min(decoding.steps_left(), room // decoding.count, _ALIKE * work.cache_tokens // decoding.count)
        if steps > 1 and self.arriving:
            last = replace(work, cache_tokens=work.cache_tokens + int(steps) * decoding.count)
            steps = min(steps, (self.arriving[0][0] - self.now_s) / engine.step_s(last))
        steps = max(1, int(steps))
        return steps, replace(work, cache_tokens=work.cache_tokens + (steps - 1) * decoding.count // 2)

    def _admit(self) -> None:
        """Move waiting requests to those whose prompts are read, as many as there is room for."""
        engine, prefixes = self.engine, self.engine.prefixes
        left = engine.step_tokens - sum(engine.read_at_once(prompt.left) for prompt in self.reading)
        if engine.rule is not StepRule.PROMPTS_FIRST:
            left -= self.decoding.count * self.decoding.rows
        while self.waiting and left > 0 and self.decoding.count + len(self.reading) < engine.max_requests:
            prompt = self.waiting[0]
            tokens, segments = prompt.left, self._segments(prompt.number)
            new = tokens - prefixes.present(segments)
            prefixes.shrink(engine.cache_tokens - self.own_tokens - new, but=segments)
            if self.own_tokens + prefixes.num_tokens + new > engine.cache_tokens and self.own_tokens:
                break
            self.waiting.popleft()
            matched = self._matched(prompt, segments)
            prompt.left, prompt.read = tokens - matched, matched
            self.own_tokens += tokens - prefixes.hold(segments)
            self.reading.append(prompt)
            left -= engine.read_at_once(prompt.left)
            if not self.is_begun[prompt.number]:
                self.is_begun[prompt.number] = True
                self.begun_s[prompt.number] = self.now_s

    def _matched(self, prompt: _Prompt, segments: Sequence[Segment]) -> int:
        """Tokens of a text that need not be computed; of one that was read elsewhere, all but the last."""
        if self.requests.transfer_s is not None and not prompt.written:
            return prompt.left - 1
        return self.engine.prefixes.matched(segments, prompt.left)

    def _begin(self, prompt: _Prompt, out_s: float) -> None:
        """A prompt has been read: its first token is out, or the next one of a request that had given way."""
        self.reading.remove(prompt)
        number, tokens = prompt.number, prompt.read
        if not prompt.written:
            self.first_s[number] = out_s
        left = int(self.requests.output_tokens[number]) - prompt.written - 1
        self.own_tokens += 1
        if left <= 0:
            self._finish(number, out_s, tokens + 1)
        else:
            self.decoding.add(number, tokens + 1, left)

    def _segments(self, number: int) -> Sequence[Segment]:
        return self.requests.segments[number] if self.requests.segments else ()

    def _let_go(self, number: int, cache_tokens: int) -> None:
        segments, prefixes = self._segments(number), self.engine.prefixes
        shared = sum(tokens for _, tokens in segments) if prefixes.block_tokens else 0
        self.own_tokens -= cache_tokens - shared
        prefixes.release(segments)

    def _finish(self, number: int, out_s: float, cache_tokens: int) -> None:
        """A request's last token is out: the next turn follows, or a closed loop's client sends another request."""
        self._let_go(number, cache_tokens)
        self.end_s[number] = out_s
        self.num_done += 1
        if (turn := self.requests.turns.get(number)) is not None:
            self._keep_answer(number)
            self._send(turn.number, out_s + turn.think_time_s)
        elif (start := next(self.starts, None)) is not None:
            self._send(start, out_s)

    def _keep_answer(self, number: int) -> None:
        """The text of a conversation is in the cache for its next turn, but for the last token, which nobody read."""
        if segments := self._segments(number):
            key, tokens = segments[-1]
            longer = [(key, tokens + int(self.requests.output_tokens[number]) - 1)]
            self.engine.prefixes.hold(longer)
            self.engine.prefixes.release(longer)

    def _send(self, number: int, arrival_s: float) -> None:
        self.arrival_s[number] = arrival_s
        heapq.heappush(self.arriving, (self._queued_s(number), number))

    def _make_room(self) -> None:
        """Whoever came last gives way while the next step's tokens have no room; its text is read again later."""
        decoding, engine = self.decoding, self.engine
        while decoding.count > 1:
            room = engine.cache_tokens - self.own_tokens - decoding.count * decoding.rows
            if engine.prefixes.num_tokens <= room:
                return
            engine.prefixes.shrink(room)
            if engine.prefixes.num_tokens <= room:
                return
            number, cache_tokens, left = decoding.take_newest()
            self._let_go(number, cache_tokens)
            written = int(self.requests.output_tokens[number]) - left
            self.waiting.appendleft(_Prompt(number, cache_tokens, 0, written))
            self.preemptions[number] += 1
