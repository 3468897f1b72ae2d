"""How often a worker reports what its programs have committed."""

from multiprocessing import Pipe
from threading import Thread

import pytest
import torch

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, ForwardBatch
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.protocol import CommitReport, EndReport, Generate
from swiftspec.engine.process.worker_loop import WorkerLoop
from swiftspec.policies import Request
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase
from tests.engine.setups import setup

NUM_TOKENS = 20


class Counting:
    """Favours the next token."""

    def forward(self, batch: ForwardBatch) -> BatchResult:
        (entry,) = batch.entries
        token = entry.tokens[-1] if isinstance(entry, Chunk) else entry.rows[-1].token
        return BatchResult((torch.nn.functional.one_hot(torch.tensor([token + 1]), 64).float(),))

    def check(self, batch: ForwardBatch) -> None:
        pass

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        pass

    def reset(self, sequence: int, tenant: int = 0) -> None:
        pass


def reported(every_s: float) -> tuple[list[list[CommitReport]], EndReport]:
    """Messages about one request: the commits of each, and the end."""
    ours, theirs = Pipe()
    loop = WorkerLoop(theirs, setup(report_every_s=every_s), {Role.TARGET: Counting()}, ())

    def run() -> None:
        with pytest.raises(EOFError):
            loop.run()

    thread = Thread(target=run)
    thread.start()
    request = Request(prompt=(1, 2), max_new_tokens=NUM_TOKENS)
    policy = Autoregressive()
    ours.send(
        Generate(
            number=1, policy=policy, request=request, sampler=Sampler(), patience_s=1.0, alone=False, fallback=policy
        )
    )
    messages: list[list[CommitReport]] = []
    finished = None
    while finished is None:
        reports = ours.recv()
        messages.append([report for report in reports if isinstance(report, CommitReport)])
        finished = next((report for report in reports if isinstance(report, EndReport)), None)
    ours.close()
    thread.join()
    theirs.close()
    return messages, finished


@pytest.mark.parametrize(("every_s", "most", "least"), [(0.0, NUM_TOKENS + 1, NUM_TOKENS), (60.0, 2, 2)])
def test_the_first_tokens_and_the_end_are_reported_at_once_and_the_rest_as_often_as_wanted(
    every_s: float, most: int, least: int
) -> None:
    messages, finished = reported(every_s)
    assert least <= len(messages) <= most
    assert messages[0] == [CommitReport(1, (3,))]
    commits = [report for message in messages for report in message]
    assert [token for report in commits for token in report.tokens] == list(range(3, 3 + NUM_TOKENS))
    assert finished.rows_asked == NUM_TOKENS - 1


def test_a_commit_lasts_until_it_has_been_handed_on() -> None:
    _, finished = reported(0.0)
    commits = [span for span in finished.spans if span.phase is Phase.COMMIT]
    others = [span for span in finished.spans if span.phase is Phase.COMPACT]
    assert len(commits) == NUM_TOKENS
    assert sorted(span.end_s - span.start_s for span in commits)[NUM_TOKENS // 2] > max(
        sorted(span.end_s - span.start_s for span in others)[: NUM_TOKENS // 2]
    )
