"""The engine for synchronous programs: a plan's warm processes, and prompts that run on them, several at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Self, Unpack

from swiftspec.artifacts.metrics import Totals
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import candidate_of, searching
from swiftspec.engine import scoring
from swiftspec.engine.checks import ContextLimit, check_devices, fitting_context
from swiftspec.engine.chunks import Chunk, Chunks, Finish
from swiftspec.engine.requests import RequestMaker, Task, Tenants
from swiftspec.engine.scoring import ScoredToken
from swiftspec.engine.stats import EngineState, Stats
from swiftspec.engine.tasks import warm_up
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import TextStream, Tokenizer
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.controls.named import control_under
from swiftspec.scheduler.routing import Replicas

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation
    from swiftspec.engine.model.sampling.sampler import AcceptanceMethod, Sampler, Sampling
    from swiftspec.engine.process.placement import Executor
    from swiftspec.engine.process.protocol import ProcessInfo, ScoreReport
    from swiftspec.engine.running import RequestEvent

__all__ = ["Chunk", "Engine", "EngineState", "Finish", "Generation", "ScoredToken", "Stats"]

_MAX_CONTEXT = 4096  # default; caches are this long
Deliver = Callable[[tuple[Chunk, ...], "Generation | Exception | None"], None]


class Engine:
    """The processes of a plan, with both models loaded; a context manager that ends them on exit.

    Thread-safe: prompts of several threads run together, and share forwards. Output does not depend on that.

    Parameters
    ----------
    plan : Plan, str or Path
        A plan for this machine, or the file that `swiftspec plan` wrote.
    policy : str, optional
        One of the plan's alternatives; its choice if not given.
    max_context : int, optional
        Tokens of the longest request, prompt and output together; key-value caches are allocated for as many. If not
        given, the target's number of positions, but 4096 at most. No more than `kv_blocks` hold.
    max_running : int
        Requests that run at once; later ones wait. Each has caches of its own.
    max_waiting : int, optional
        Requests that wait at most; more are refused with an EngineBusyError. Unlimited if not given.
    kv_blocks : int, optional
        Blocks of 16 tokens that the caches of all requests hold together; a request that finds none left gives its own
        back and is continued later. As many as `max_running` of the longest need, if not given.
    control : str, optional
        How much is drafted and verified under load: `fixed:K`, `goodput`, `goodput-per-request`, `worth`, `slo`, or
        `none`: all that the policy asks for. As planned, if not given.
    num_targets, num_drafts : int
        Equal targets that share the requests, each with the limits above, and draft groups that all of them share; each
        has its own if not given. All but the first have the devices after those of the plan. On one machine only.
    earlier_outputs : int, optional
        Most outputs of earlier requests that a suffix-decoding policy proposes again, to any later request of the same
        tenant. As planned, if not given, which is none: see docs/serving.md on privacy.
    tenants : mapping of str to path
        Fine-tunes and adapters of the target that the same processes serve, by their names for requests. Equal weights
        are held once. On CPUs only.
    max_restarts : int
        How often within an hour a draft that died is restarted. After that the target decodes alone, and the logger
        `swiftspec` warns of it.
    executor : Executor, optional
        Starts the processes, perhaps on several nodes; this machine if not given.
    cancelled : threading.Event, optional
        Another thread may set it to end the start.

    Attributes
    ----------
    max_context : int
        Tokens of the longest request.
    model : str
        The target, as the plan names it.
    tenants : tuple of Tenant
        The target, and those above in their order.

    Raises
    ------
    ValueError
        If the plan has no such policy, is for another machine, its models cannot be loaded, or a parameter is wrong.
    swiftspec.errors.EngineError
        If a process ends while it loads.
    InterruptedError
        If the start was cancelled.

    Examples
    --------
    >>> with swiftspec.Engine("plan.json") as engine:
    ...     for chunk in engine.generate("def main():", max_new_tokens=16):
    ...         print(chunk.text, end="")
    """

    def __init__(
        self,
        plan: Plan | str | Path,
        *,
        policy: str | None = None,
        max_context: int | None = None,
        max_running: int = 8,
        max_waiting: int | None = None,
        kv_blocks: int | None = None,
        control: str | None = None,
        num_targets: int = 1,
        num_drafts: int | None = None,
        earlier_outputs: int | None = None,
        tenants: Mapping[str, str | Path] | None = None,
        max_restarts: int = 3,
        executor: Executor | None = None,
        cancelled: Event | None = None,
    ) -> None:
        made = plan if isinstance(plan, Plan) else Plan.load(Path(plan))
        candidate = candidate_of(made, policy)
        source = "plan" if isinstance(plan, Plan) else str(plan)
        replicas = Replicas(num_targets=num_targets, num_drafts=num_drafts)
        check_devices(made, [candidate] if executor is None else [], source=source, replicas=replicas)
        if executor is not None and num_targets > 1:
            raise ValueError(f"num_targets is {num_targets}; expected 1 where processes run on several nodes")
        directory = model_directory(made.target.model)
        spec = ModelSpec.from_directory(directory)
        self._candidate, self._policy = candidate, searching(candidate, earlier_outputs).build()
        self.model = made.target.model
        most = ContextLimit.of_model(spec, [self._policy], model=made.target.model).most
        if max_context is not None and not 0 < max_context <= most:
            raise ValueError(f"max_context is {max_context}; expected 1 to {most}, which {made.target.model} allows")
        self.max_context = fitting_context(
            max_context or min(most, _MAX_CONTEXT), kv_blocks, tree_rows=self._policy.target_rows
        )
        self._requests = RequestMaker(
            Tokenizer(directory),
            Tenants.of(tenants or {}, spec, directory),
            vocab_size=spec.vocab_size,
            max_context=self.max_context,
            max_new_tokens=made.max_new_tokens,
        )
        self._totals, self._prompt_tokens, self._losses = Totals(), 0, 0  # of finished requests
        self._noting = Lock()
        admission = AdmissionLimits(
            max_running=max_running,
            max_waiting=max_waiting,
            num_blocks=kv_blocks,
            tree_rows=self._policy.target_rows,
        )
        from swiftspec.engine.launcher import Launcher

        self._launcher = Launcher.for_candidate(
            made,
            candidate,
            max_context=self.max_context,
            max_restarts=max_restarts,
            admission=admission,
            control=control_under(control, candidate.control),
            replicas=replicas,
            tenants=self._requests.tenants.directories,
            executor=executor,
            cancelled=cancelled,
        )
        self.tenants = self._requests.tenants.weighed(each.tenant_bytes for each in self.processes).every

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process. Calling it again does nothing."""
        self._launcher.close()

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        acceptance_method: AcceptanceMethod = "follow",
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        request_id: str | None = None,
        client: str = "",
        tpot_s: float | None = None,
        tenant: str | None = None,
        cancelled: Event | None = None,
        **sampling: Unpack[Sampling],
    ) -> Generator[Chunk, None, Generation]:
        """Continue a prompt: a chunk for every commit. Closing the generator ends the request.

        Parameters
        ----------
        prompt : str, or sequence of int
            A text, or token ids.
        max_new_tokens : int, optional
            Output tokens at most; the plan's number if not given.
        min_new_tokens : int
            Output tokens before which no end of sequence and none of `stop_token_ids` is chosen.
        acceptance_method : str
            Accept a draft token when the target draws the same, whose noise the draft knows (`follow`); or by both
            models' probabilities (`residual`), which pays for chains. Trees that grow over rounds are followed.
        ignore_eos : bool
            Continue after an end of sequence.
        stop_token_ids : sequence of int
            Tokens that end the output as well.
        request_id : str, optional
            Name of the request in its timeline; its number if not given.
        client : str
            Whose request it is. While requests wait, the client that has had the fewest tokens is next.
        tpot_s : float, optional
            Limit on the time per token, which the control `slo` keeps if it can.
        tenant : str, optional
            One of the engine's tenants; the target itself if not given.
        cancelled : threading.Event, optional
            Another thread may set it to end the request, even while the request waits for a token.
        **sampling : Sampling
            `temperature` (0 is greedy, and the default); `top_p`, `top_k` and `min_p`, which keep the likeliest tokens;
            `seed`, which gives the same text with every policy, and is drawn if not given (`Generation` has it);
            `logit_bias`, a number for each token id that is added to its logit; and `num_log_probs`, to be told the
            log-prob of each token before all of these, and so many of the likeliest tokens in its place.

        Yields
        ------
        Chunk

        Returns
        -------
        Generation
            The generator's return value: tokens, the timeline, whether it was interrupted.

        Raises
        ------
        ValueError
            If a parameter is out of range; or if the prompt is empty, too long or has unknown tokens.
        swiftspec.errors.EngineError
            If the target died; the chunks before it are what it had committed. EngineBusyError, at the first chunk, if
            `max_waiting` requests are waiting.
        """
        task, sampler = self._requests.made(
            prompt,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            acceptance_method=acceptance_method,
            ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
            request_id=request_id,
            client=client,
            tpot_s=tpot_s,
            tenant=tenant,
            **sampling,
        )
        return self._chunks(task, sampler, cancelled or Event())

    def submit(self, prompt: str | Sequence[int], deliver: Deliver, **options: Any) -> Callable[[], None]:
        """Continue a prompt without waiting, for callers with an event loop.

        Parameters
        ----------
        prompt, **options
            As of `generate`, without `cancelled`.
        deliver : callable
            Takes chunks, and at the end a `Generation` or an exception; in another thread, which it must not hold up.

        Returns
        -------
        callable
            Ends the request early; its `Generation` is delivered soon after.
        """
        task, sampler = self._requests.made(prompt, **options)
        scores: list[ScoreReport] = []
        chunks = Chunks(task.request, self._requests.tokenizer, scores)

        def take(event: RequestEvent) -> None:
            if isinstance(event, tuple):
                deliver(tuple(map(chunks.of, event)), None)
                return
            if not isinstance(event, Exception):
                self._note(task, event)
            deliver(chunks.rest(), event)

        running = self._launcher.submit(self._policy, task, sampler=sampler, deliver=take, scores=scores)
        return partial(self._launcher.cancel, running)

    def score(
        self, prompt: str | Sequence[int], *, num_candidates: int = 0, tenant: str | None = None
    ) -> tuple[ScoredToken, ...]:
        """How likely the target finds each token of a text, and how likely so many others. Raises as `generate`."""
        task, _ = self._requests.made(prompt, max_new_tokens=1, tenant=tenant, ignore_eos=True)
        return self.scored(task.request.prompt, scoring.score(self._launcher, task, num_candidates))

    def submit_scoring(self, prompt: Sequence[int], deliver: Deliver, **options: Any) -> Callable[[], None]:
        """Score a prompt without waiting, see `scoring.submit`: only the end is delivered, for `scored`."""
        asked = {name: options.pop(name) for name in ("client", "tenant", "request_id") if name in options}
        task, _ = self._requests.made(prompt, max_new_tokens=1, ignore_eos=True, **asked)
        return scoring.submit(self._launcher, task, deliver, **options)

    def scored(self, prompt: Sequence[int], generation: Generation) -> tuple[ScoredToken, ...]:
        """The tokens of a prompt that was scored."""
        return scoring.scored(self._requests.tokenizer, prompt, generation)

    def warm_up(self, prompt: str | Sequence[int], *, max_new_tokens: int | None = None) -> None:
        """Run a short request: the first one is slower, because buffers are allocated and caches filled.

        `stats` does not count its few tokens, at most `max_new_tokens`. Raises as `generate`; KeyboardInterrupt if a
        signal interrupted it.
        """
        task, _ = self._requests.made(prompt, max_new_tokens=max_new_tokens, request_id="warm-up")
        warm_up(self._launcher, self._candidate, task)

    def tokenize(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text, with the special tokens around it that the model expects unless they are not wanted.

        A text that is much too long for a request is cut.
        """
        return self._requests.tokenize(text, special_tokens=special_tokens)

    def text_stream(self) -> TextStream:
        """A decoder of tokens that come one by one."""
        return TextStream(self._requests.tokenizer)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without special tokens. ValueError if one is unknown."""
        return self._requests.tokenizer.decode(self._requests.known(tokens))

    def _chunks(self, task: Task, sampler: Sampler, cancelled: Event) -> Generator[Chunk, None, Generation]:
        scores: list[ScoreReport] = []
        commits = self._launcher.stream(self._policy, task, sampler=sampler, interrupted=cancelled, scores=scores)
        with closing(commits):
            generation = yield from Chunks(task.request, self._requests.tokenizer, scores).follow(commits)
        self._note(task, generation)
        return generation

    def _note(self, task: Task, generation: Generation) -> None:
        if not generation.interrupted:
            with self._noting:
                self._totals = self._totals.plus(generation.timeline)
                self._prompt_tokens += len(task.request.prompt)
                self._losses += generation.losses

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """Role, process id and cores of every process; the draft's are missing during a restart."""
        return self._launcher.processes

    def state(self) -> EngineState:
        """Requests that run and wait, use of the caches, and the state of the draft."""
        return self._launcher.state()

    def stats(self) -> Stats:
        """Figures of the finished requests."""
        with self._noting:
            return Stats(
                requests=self._totals.requests,
                prompt_tokens=self._prompt_tokens,
                tokens=self._totals.tokens,
                tokens_per_s=self._totals.tokens_per_s,
                tokens_per_round=self._totals.tokens_per_round,
                losses=self._losses,
                restarts=self._launcher.num_restarts,
            )
