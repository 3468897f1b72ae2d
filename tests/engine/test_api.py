import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import swiftspec
from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Plan
from swiftspec.engine.api import Chunk
from swiftspec.engine.launcher import Generation
from swiftspec.errors import EngineError
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Timeline
from tests.cli.samples import plan as sample_plan
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.conftest import two_cores
from tests.engine.pairs import references, write_pair
from tests.engine.processes import engine_processes, gone_within

pytestmark = two_cores
PROMPT = "def add(a, b):\n"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    pair = write_pair(tmp_path_factory.mktemp("engine"), architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    return sample_plan(target=target, draft=draft)


@pytest.fixture(scope="module")
def engine(plan: Plan) -> Iterator[swiftspec.Engine]:
    with swiftspec.Engine(plan) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plan: Plan) -> str:
    with swiftspec.Engine(plan, policy="autoregressive") as alone:
        return "".join(chunk.text for chunk in alone.generate(PROMPT, max_new_tokens=24))


def test_chunks_come_commit_by_commit_and_add_up_to_the_targets_own_text(
    engine: swiftspec.Engine, expected: str
) -> None:
    chunks = list(engine.generate(PROMPT, max_new_tokens=24))
    assert "".join(chunk.text for chunk in chunks) == expected
    assert len([chunk for chunk in chunks if chunk.token_ids]) > 1


def test_prompts_in_turn_run_on_the_same_processes_and_are_counted(engine: swiftspec.Engine) -> None:
    before = engine.stats()
    for prompt in (PROMPT, (5, 6, 7)):
        assert sum(len(chunk.token_ids) for chunk in engine.generate(prompt, max_new_tokens=9)) == 9
    after = engine.stats()
    assert (after.requests - before.requests, after.tokens - before.tokens) == (2, 18)
    assert after.prompt_tokens > before.prompt_tokens + 3
    assert after.tokens_per_s > 0
    assert after.restarts == 0


def test_figures_are_those_that_measure_finds_in_the_same_timelines(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations: list[Generation] = []
    with swiftspec.Engine(plan) as engine:
        stream = engine._launcher.stream

        def noted(*arguments: Any, **options: Any) -> Generator[tuple[int, ...], None, Generation]:
            generation = yield from stream(*arguments, **options)
            generations.append(generation)
            return generation

        monkeypatch.setattr(engine._launcher, "stream", noted)
        assert (engine.stats().requests, engine.stats().tokens_per_s, engine.stats().tokens_per_round) == (0, 0.0, 0.0)
        for max_new_tokens in (1, 9, 30):
            list(engine.generate(PROMPT, max_new_tokens=max_new_tokens))
        stats, metrics = engine.stats(), measure([generation.timeline for generation in generations])
    assert (stats.requests, stats.tokens) == (3, metrics.num_tokens)
    assert stats.tokens_per_s == pytest.approx(metrics.figures.tokens_per_s)
    assert stats.tokens_per_round == pytest.approx(metrics.figures.tokens_per_round)


def test_requests_that_are_over_are_not_kept(engine: swiftspec.Engine) -> None:
    before = num_timelines()
    for _ in range(3):
        list(engine.generate(PROMPT, max_new_tokens=9))
    assert num_timelines() <= before


def num_timelines() -> int:
    gc.collect()
    return sum(type(kept) is Timeline for kept in gc.get_objects())


def test_a_request_that_is_left_makes_way_for_the_next(engine: swiftspec.Engine, expected: str) -> None:
    chunks = engine.generate(PROMPT, max_new_tokens=200)
    next(chunks)
    chunks.close()
    assert "".join(chunk.text for chunk in engine.generate(PROMPT, max_new_tokens=24)) == expected


def collected(
    chunks: Generator[Chunk, None, Generation], seen: list[Chunk], *, after_each: Callable[[], object] = lambda: None
) -> Generation:
    """Return value of the generator."""
    while True:
        try:
            seen.append(next(chunks))
        except StopIteration as finished:
            generation: Generation = finished.value
            return generation
        after_each()


def test_what_a_generator_returns_is_the_whole_request(engine: swiftspec.Engine) -> None:
    chunks: list[Chunk] = []
    generation = collected(engine.generate(PROMPT, max_new_tokens=24, request_id="mine"), chunks)
    assert generation.tokens == tuple(token for chunk in chunks for token in chunk.token_ids)
    assert (generation.timeline.request, generation.timeline.num_tokens, generation.interrupted) == ("mine", 24, False)


def test_warming_up_is_no_request_that_counts(engine: swiftspec.Engine) -> None:
    before = engine.stats()
    engine.warm_up(PROMPT, max_new_tokens=4)
    assert engine.stats() == before
    with pytest.raises(ValueError, match="prompt is empty"):
        engine.warm_up(())


def test_text_that_was_held_back_comes_before_the_error(plan: Plan) -> None:
    """The target dies: chunks are all that it had committed, an incomplete character included."""
    slow = plan.target.model_copy(update={"inflate": "layers=300"})  # else the text may be complete before the signal
    with swiftspec.Engine(plan.model_copy(update={"target": slow})) as engine:
        target = next(process for process in engine.processes if process.role is Role.TARGET)
        chunks: list[Chunk] = []
        stream = engine.generate(PROMPT, max_new_tokens=200)
        with pytest.raises(EngineError) as failure:
            collected(stream, chunks, after_each=lambda: os.kill(target.pid, signal.SIGKILL))
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == failure.value.tokens != ()
        assert "".join(chunk.text for chunk in chunks) == engine._requests.tokenizer.decode(failure.value.tokens)


def test_parameters_that_make_no_sense_are_named_at_the_call(engine: swiftspec.Engine) -> None:
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        engine.generate(PROMPT, max_new_tokens=0)
    with pytest.raises(ValueError, match="temperature is -1"):
        engine.generate(PROMPT, temperature=-1)
    with pytest.raises(ValueError, match="prompt is empty"):
        engine.generate(())


def test_a_token_that_the_model_does_not_know_costs_the_engine_nothing(engine: swiftspec.Engine) -> None:
    for token in (-1, 10**9):
        with pytest.raises(ValueError, match=rf"prompt has token {token}; expected 0 to \d+"):
            engine.generate((5, token, 7))
    assert sum(len(chunk.token_ids) for chunk in engine.generate((5, 6, 7), max_new_tokens=9)) == 9


def test_a_policy_the_plan_does_not_have_is_named(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="policy is 'pearl'; the plan has swiftspec, serial_chain, autoregressive"):
        swiftspec.Engine(plan, policy="pearl")
    with pytest.raises(ValueError, match=r"max_context is 99999; expected 1 to"):
        swiftspec.Engine(plan, max_context=99999)
    with pytest.raises(ValueError, match=r"none\.json: cannot be read"):
        swiftspec.Engine(tmp_path / "none.json")


def test_asyncio_requests_wait_their_turn(plan: Plan, expected: str) -> None:
    async def text(engine: swiftspec.AsyncEngine) -> str:
        return "".join([chunk.text async for chunk in engine.generate(PROMPT, max_new_tokens=24)])

    async def both() -> list[str]:
        async with swiftspec.AsyncEngine(plan) as engine:
            return list(await asyncio.gather(text(engine), text(engine)))

    assert asyncio.run(both()) == [expected, expected]


@pytest.mark.parametrize("leave", ["the task is cancelled", "the engine is closed"])
def test_a_frozen_target_holds_nobody_up_who_leaves(plan: Plan, leave: str) -> None:
    async def seconds_to_leave() -> float:
        engine = await swiftspec.AsyncEngine(plan).__aenter__()
        (target,) = [process.pid for process in engine._running._launcher.processes if process.role is Role.TARGET]
        stream = engine.generate(PROMPT, max_new_tokens=200)
        await anext(stream)
        os.kill(target, signal.SIGSTOP)
        try:
            waiting = asyncio.ensure_future(rest(stream))
            await asyncio.sleep(0.5)
            before_s = time.monotonic()
            if leave == "the task is cancelled":
                waiting.cancel()
                await asyncio.wait([waiting], timeout=10.0)
            else:
                await asyncio.wait([asyncio.ensure_future(engine.__aexit__(None, None, None))], timeout=10.0)
            return time.monotonic() - before_s
        finally:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGCONT)
            await asyncio.wait([waiting])
            await engine.__aexit__(None, None, None)

    assert asyncio.run(seconds_to_leave()) < 8.0


async def rest(stream: AsyncIterator[Chunk]) -> None:
    async for _ in stream:
        pass


def test_a_cancelled_task_ends_its_request(plan: Plan, expected: str) -> None:
    async def cancelled() -> tuple[str, int]:
        async with swiftspec.AsyncEngine(plan) as engine:
            begun = asyncio.Event()

            async def long() -> None:
                async for _ in engine.generate(PROMPT, max_new_tokens=200):
                    begun.set()

            task = asyncio.create_task(long())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            chunks = [chunk.text async for chunk in engine.generate(PROMPT, max_new_tokens=24)]
            return "".join(chunks), engine.stats().requests

    assert asyncio.run(cancelled()) == (expected, 1)


def test_a_start_that_is_cancelled_leaves_no_process(plan: Plan) -> None:
    """As by a server with a bound on its start, which tries again."""

    before, num_threads = set(engine_processes(os.getpid())), threading.active_count()

    async def cancel_a_start() -> None:
        start = asyncio.create_task(swiftspec.AsyncEngine(plan).__aenter__())
        while set(engine_processes(os.getpid())) <= before and not start.done():
            await asyncio.sleep(0.001)
        assert not start.done()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    for _ in range(2):
        asyncio.run(cancel_a_start())
        assert gone_within(sorted(set(engine_processes(os.getpid())) - before), 30.0)
    assert threading.active_count() < num_threads + 8


def test_closing_again_does_nothing(plan: Plan) -> None:
    engine = swiftspec.Engine(plan, policy="autoregressive")
    engine.close()
    engine.close()


def test_leaving_an_engine_that_never_ran_is_clean(plan: Plan) -> None:
    asyncio.run(swiftspec.AsyncEngine(plan).__aexit__(None, None, None))


USES_LIBRARY = """
import signal, sys, time
import swiftspec
with swiftspec.Engine(sys.argv[1]) as engine:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    print(engine._launcher.processes[0].pid, flush=True)
    for _ in engine.generate("def", max_new_tokens=200):
        time.sleep(0.2)
"""


def test_a_program_that_uses_it_keeps_its_signals_and_leaves_nothing(
    plan: Plan, tmp_path: Path, short_folder: Path
) -> None:
    plan.save(tmp_path / "plan.json")
    environment = os.environ | {"TMPDIR": str(short_folder)}
    command = [sys.executable, "-c", USES_LIBRARY, str(tmp_path / "plan.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        assert program.stdout
        program.stdout.readline()
        pids = engine_processes(program.pid)
        assert len(pids) == 3
        program.terminate()
        assert program.wait() == -signal.SIGTERM
        assert gone_within(pids, 30.0)
    assert len(list(short_folder.glob("swiftspec-*"))) == 1
    subprocess.run([sys.executable, "-c", SWEEPS], env=environment, check=True)
    assert list(short_folder.iterdir()) == []


SWEEPS = """
from swiftspec.engine.process.run_folder import run_folder
with run_folder():
    pass
"""


@pytest.mark.alone
def test_tokenising_a_long_prompt_keeps_no_other_task_waiting(plan: Plan) -> None:
    """The loop goes on meanwhile; so does a thread of Python, which the tokenizer could keep out, too."""
    long = "def f(x):\n    return x\n" * 20_000

    async def seconds() -> tuple[float, float]:
        async with swiftspec.AsyncEngine(plan) as engine:
            tokenizer = engine._running._requests.tokenizer
            began_s = time.perf_counter()
            tokenizer.encode(long)
            alone_s = time.perf_counter() - began_s
            engine._running.max_context = 10 * len(long)  # so that all of it is tokenised before it is refused
            request = asyncio.ensure_future(rest(engine.generate(long)))
            longest_s = 0.0
            while not request.done():
                before_s = time.perf_counter()
                await asyncio.sleep(0.001)
                longest_s = max(longest_s, time.perf_counter() - before_s)
            with pytest.raises(ValueError, match="more than the context of"):
                await request
            return alone_s, longest_s

    alone_s, longest_s = asyncio.run(seconds())
    assert longest_s < alone_s / 2


def test_an_engine_outside_of_async_with_says_so(plan: Plan) -> None:
    with pytest.raises(ValueError, match="use it in an `async with`"):
        swiftspec.AsyncEngine(plan).stats()


def test_importing_the_package_loads_no_engine() -> None:
    command = "import sys, swiftspec; assert not {'torch', 'swiftspec.engine.api'} & set(sys.modules); swiftspec.Engine"
    subprocess.run([sys.executable, "-c", command], check=True)
