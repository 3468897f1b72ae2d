"""A load under this package's own engine: requests that replay recorded rounds, in steps that `scheduler` forms.

Admission, steps and their seconds are those of the event simulation, which has programs and trees instead of rounds:
for the same rounds both tell the same. Models share their devices, and whatever is asked for is verified whole.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence, Set

import numpy as np

from swiftspec.planner.under_load.loads import ArrayRun, Requests
from swiftspec.planner.under_load.rounds import RecordedRequest, Round, RoundArrays, forwards_of, phase_of, prefill
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.asks import Ask, Step
from swiftspec.scheduler.batching import BatchLimits, choose
from swiftspec.simulator.latency import ForwardTimes, LatencySampler, LatencyTable
from swiftspec.timing.timeline import Phase


class CutShortError(Exception):
    """A verification had to share its rows: what it would have brought is in no record."""


class OwnEngineRun:
    """A simulation in which all requests are served.

    degrees, ranks: as of a `LatencySampler`. rounds: of recorded requests, one after another. first_rounds: index of
    each request's first round; those after it follow, in a circle. clients: whose each request is; all are one
    client's if empty.
    """

    def __init__(
        self,
        requests: Requests,
        policy: Policy,
        prices: LatencyTable,
        rounds: Sequence[Round],
        *,
        degrees: Mapping[Role, int],
        ranks: Mapping[Role, int],
        admission: AdmissionLimits,
        batch: BatchLimits,
        first_rounds: Sequence[int],
        clients: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.requests, self.rounds, self.clients = requests, rounds, clients
        self.admission, self.batch = admission, batch
        self.begins_with_token = policy.layout is Layout.TARGET_ONLY  # the prompt's forward brings the first one
        self.forwards = [forwards_of(one) for one in rounds]
        self.arrays = RoundArrays(rounds)
        self.meter = LatencySampler(prices, policy=policy.name, degrees=degrees, ranks=ranks)
        self.meter.seed(seed, 0)
        self.times = ForwardTimes(self.meter)
        self.queue = AdmissionQueue(admission)
        self.now_s = 0.0
        self.host_scale = 1.0  # since the last step: requests that shared it share the host's time, too
        self.running: dict[int, RecordedRequest] = {}  # in the order of admission
        self.ready: deque[tuple[RecordedRequest, Ask | None]] = deque()  # those that can go on, and what was computed
        count = len(requests.output_tokens)
        self.next_round = list(first_rounds)
        self.written = [0] * count
        self.begun_s = [np.nan] * count
        self.commits_s: list[list[float]] = [[] for _ in range(count)]
        self.arrival_s = np.array(requests.arrival_s, np.float64)
        self.num_sent = min(requests.num_clients, count) if requests.num_clients else count
        self.arriving = [(float(self.arrival_s[number]), number) for number in range(self.num_sent)]
        heapq.heapify(self.arriving)
        self.gave_way = [0] * count
        self.num_done = self.num_steps = 0
        self.busy_s = dict.fromkeys(Role, 0.0)
        self.running_s = 0.0

    def run(self) -> ArrayRun:
        """Serve them.

        CutShortError: if a verification is granted fewer rows than it asks for. ValueError: if a request could never
        fit into the cache.
        """
        while self.num_done < len(self.commits_s):
            while self.ready:
                self._proceed(*self.ready.popleft())
            if self._compute_round():
                continue
            asks = [each.ask for each in self.running.values() if each.ask is not None]
            choice = choose(asks, limits=self.batch, num_running=len(self.running), now_s=self.now_s)
            if isinstance(choice, Step):
                self._compute(choice)
            elif self.arriving:  # drafts and targets that share devices never wait for each other
                self._pass(max(0.0, self.arriving[0][0] - self.now_s))
        return self._result()

    def _pass(self, seconds: float) -> None:
        """Let time pass, in which requests may come."""
        end_s = self.now_s + seconds
        while self.arriving and self.arriving[0][0] <= end_s:
            self.now_s, number = heapq.heappop(self.arriving)
            self.queue.submit(
                number,
                num_tokens=int(self.requests.prompt_tokens[number]),
                max_tokens=int(self.requests.prompt_tokens[number] + self.requests.output_tokens[number]),
                client=self.clients[number] if self.clients else "",
            )
            self._admit()
        self.now_s = end_s

    def _admit(self) -> None:
        self._give_way(self.queue.make_way())
        for number in self.queue.admit():
            if np.isnan(self.begun_s[number]):
                self.begun_s[number] = self.now_s
            written = self.written[number]
            request = RecordedRequest(
                number=number,
                text=int(self.requests.prompt_tokens[number]) + written,
                left=int(self.requests.output_tokens[number]) - written,
                round=self.next_round[number],
            )
            self.running[number] = request
            self.ready.append((request, None))

    def _give_way(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            gone = self.running.pop(number)
            self.ready = deque(entry for entry in self.ready if entry[0] is not gone)
            self.gave_way[number] += 1

    def _proceed(self, request: RecordedRequest, computed: Ask | None) -> None:
        """What follows a forward: the host's part, then the next forward."""
        if computed is None:
            unread = 0 if self.begins_with_token else 1
            if request.text > unread:
                request.ask_for(prefill(Role.TARGET, request.text - unread), now_s=self.now_s)
                return
        elif computed.model is Role.DRAFT:
            request.level += 1
        elif computed.is_prefill:
            if self.begins_with_token and not self._commit(request, 1, ((Phase.COMMIT, 0),)):
                return
        elif not self._end_round(request):
            return
        request.ask_next(self.forwards[request.round], now_s=self.now_s)

    def _end_round(self, request: RecordedRequest) -> bool:
        """The host's part of a round; whether the request goes on."""
        one = self.rounds[request.round]
        request.level = 0
        request.round = (request.round + 1) % len(self.rounds)
        return self._commit(request, one.tokens, one.host)

    def _commit(self, request: RecordedRequest, tokens: int, host: Sequence[tuple[Phase, int]]) -> bool:
        """Write tokens, and move what stays in the caches; whether the request goes on."""
        for phase, rows in host:
            if seconds := self.host_scale * self.meter.hosts(phase, (rows,)):
                self._pass(seconds)
            if request.number not in self.running:
                return False
            if phase is Phase.COMMIT and not self._write(request, min(tokens, request.left)):
                return False
        return True

    def _write(self, request: RecordedRequest, tokens: int) -> bool:
        number = request.number
        request.text += tokens
        request.left -= tokens
        self.written[number] += tokens
        self.next_round[number] = request.round
        self.commits_s[number].append(self.now_s)
        self._give_way(self.queue.grow(number, request.text))
        if number not in self.running:
            return False
        if request.left > 0:
            return True
        del self.running[number]
        self.num_done += 1
        self.queue.release(number)
        if self.requests.num_clients and self.num_sent < len(self.commits_s):
            self.arrival_s[self.num_sent] = self.now_s
            heapq.heappush(self.arriving, (self.now_s, self.num_sent))
            self.num_sent += 1
        self._admit()
        return False

    def _compute_round(self) -> bool:
        """Compute a round of all requests, where all begin one and nobody joins them; whether that is so."""
        requests = list(self.running.values())
        has_place = len(requests) < self.admission.max_running
        if not requests or not all(each.begins_round for each in requests) or (has_place and self.queue.num_waiting):
            return False
        columns = self.arrays.columns(
            [each.round for each in requests],
            [each.text for each in requests],
            max_rows=self.batch.max_rows,
        )
        if columns is None:
            return False
        for level, rows, attended in columns:
            phase, model = (Phase.VERIFY, Role.TARGET) if level is None else (Phase.EXPAND, Role.DRAFT)
            self._forward(phase, model, len(rows), sum(rows), attended, self.meter.hosts(phase, rows))
            if level is None or self.ready or len(self.running) < len(requests):
                break  # the round is over, or somebody came or gave way
        for request in requests:
            if request.number in self.running:
                self._answer_level(request, level)
        self._admit()
        return True

    def _answer_level(self, request: RecordedRequest, level: int | None) -> None:
        """Note that a step of a round was computed, and those before it."""
        forwards = self.forwards[request.round]
        last = len(forwards) - 1
        request.level = last if level is None else min(level, last)
        request.ask_for(forwards[request.level], now_s=self.now_s)
        assert request.ask is not None
        if level is None or level < last:
            self._answer(request, request.ask.num_rows)
        else:  # its verification waits for the drafts of others
            request.ask = request.ask._replace(num_overtaken=level + 1 - last)

    def _compute(self, step: Step) -> None:
        granted = [(self.running[grant.request], grant.num_rows) for grant in step.grants]
        self._overtake({grant.request for grant in step.grants})
        phases = [phase_of(request.ask) for request, _ in granted if request.ask]
        # Prompts are priced as such only where nothing else is computed with them.
        phase = next((each for each in phases if each is not Phase.PREFILL), Phase.PREFILL)
        attended = sum(rows * (request.cached + request.num_read) for request, rows in granted)
        host_s = sum(self.meter.hosts(each, (rows,)) for each, (_, rows) in zip(phases, granted, strict=True))
        self._forward(phase, step.model, len(granted), step.num_rows, attended, host_s)
        for request, rows in granted:
            self._answer(request, rows)
        self._admit()

    def _forward(self, phase: Phase, model: Role, sequences: int, rows: int, attended: float, host_s: float) -> None:
        """A forward over rows of some requests. host_s: of each of them alone, together."""
        self.host_scale = self.meter.together(sequences)
        if host_s:
            self._pass(self.host_scale * host_s)
        context = round(attended / rows)
        seconds = self.times.begin(phase, model, rows=rows, context=context, sequences=sequences, now_s=self.now_s)
        self._pass(seconds)
        self.times.end(phase, model, rows=rows, now_s=self.now_s)
        self.num_steps += 1
        self.busy_s[model] += seconds
        self.running_s += seconds * sequences

    def _overtake(self, granted: Set[int]) -> None:
        for number, request in self.running.items():
            if request.ask is not None and number not in granted:
                request.ask = request.ask._replace(num_overtaken=request.ask.num_overtaken + 1)

    def _answer(self, request: RecordedRequest, rows: int) -> None:
        """Note that rows of what a request asks for were computed."""
        ask = request.ask
        if ask is None or self.running.get(request.number) is not request:
            return  # it gave way meanwhile
        if rows < ask.num_rows:
            if not ask.is_prefill:
                raise CutShortError
            request.num_read += rows
            request.ask = ask._replace(num_rows=ask.num_rows - rows)
            return
        request.ask = None
        self.ready.append((request, ask))

    def _result(self) -> ArrayRun:
        first_s = np.array([commits[0] for commits in self.commits_s])
        end_s = np.array([commits[-1] for commits in self.commits_s])
        busy_s = sum(self.busy_s.values())
        return ArrayRun(
            arrival_s=self.arrival_s,
            queued_s=np.array(self.begun_s) - self.arrival_s,
            ttft_s=first_s - self.arrival_s,
            e2e_s=end_s - self.arrival_s,
            output_tokens=self.requests.output_tokens,
            num_steps=self.num_steps,
            preemptions=np.array(self.gave_way, np.int64),
            mean_running=self.running_s / busy_s if busy_s else 0.0,
            busy_s=busy_s,
            end_s=float(end_s.max()),
            hit_rate=0.0,
            draft_s=self.busy_s[Role.DRAFT],
            commits_s=self.commits_s,
        )
