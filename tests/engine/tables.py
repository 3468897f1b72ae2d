"""Models that are a table, run by the engine's driver in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, ForwardBatch, as_candidates
from swiftspec.engine.model.sampling.sampler import Sampler, top_candidates
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import DraftForward, ForwardKind, Prefill, Program, Role, TargetForward
from swiftspec.policies.steered import steered_programs
from swiftspec.timing.timeline import Span
from tools.run_alone import run_alone

Grant = Callable[[int], int]


class TableModel:
    """Logits [V, V, V] of the next token by the last two; the cache of its one sequence is the paths of its slots."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.reset(0)

    def copy(self) -> "TableModel":
        """The same table, and a cache of its own."""
        return TableModel(self.table)

    @property
    def vocab_size(self) -> int:
        return self.table.shape[0]

    def reset(self, sequence: int, tenant: int = 0) -> None:
        self.prefix: tuple[int, ...] = ()
        self.tree: list[tuple[int, ...]] = []

    def after(self, path: tuple[int, ...]) -> Tensor:
        """Logits after some tokens; a single one follows token 0."""
        before, last = (0, *path)[-2:]
        return self.table[before, last]

    def forward(self, batch: ForwardBatch) -> BatchResult:
        (entry,) = batch.entries
        before = list(self.tree)
        if isinstance(entry, Chunk):
            self.prefix = (*(self.prefix or (0,)), *entry.tokens)
            logits = self.after(self.prefix)[None]
        else:
            first = len(self.tree)
            for row in entry.rows:
                above = self.tree[row.ancestors.bit_length() - 1] if row.ancestors else self.prefix
                self.tree.append((*above, row.token))
            logits = torch.stack([self.after(path) for path in self.tree[first:]])
        if batch.kind is ForwardKind.FIRST_HALF:  # which guesses what the second one says, and adds no rows
            self.tree = before
        candidates = as_candidates(*top_candidates(logits, batch.top_k)) if batch.top_k else ()
        return BatchResult((logits,), (candidates,))

    def check(self, batch: ForwardBatch) -> None:
        pass

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        kept = [self.tree[slot] for slot in slots]
        self.prefix = kept[num_verified - 1] if num_verified else self.prefix
        self.tree = kept[num_verified:]


def random_table(vocab_size: int, *, seed: int, spread: float) -> Tensor:
    """Normal logits."""
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(vocab_size, vocab_size, vocab_size, generator=generator)


def _granted(program: Program, grant: Grant, may_draft: Callable[[], bool]) -> Program:
    """The program with its verifications answered for their first rows only, and drafting that may be declined."""
    answer: Any = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration:
            return
        if isinstance(effect, Prefill | DraftForward) and effect.level and not may_draft():
            answer = ()
            continue
        if isinstance(effect, TargetForward):
            effect = TargetForward(effect.rows[: grant(len(effect.rows))])
        answer = yield effect


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and a draft."""

    target: TableModel
    draft: TableModel

    def generate(
        self,
        policy: Policy,
        request: Request,
        sampler: Sampler,
        *,
        grant: Grant | None = None,
        may_draft: Callable[[], bool] | None = None,
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]], list[Span]]:
        """Output, what each round committed of it, and the spans.

        grant: rows that a verification of so many gets. may_draft: of the policy under a control, whether a forward of
        the draft that it can do without is computed.
        """
        commits: list[tuple[int, ...]] = []
        models = {Role.TARGET: self.target, Role.DRAFT: self.draft}
        programs = steered_programs(policy, request) if may_draft else policy.programs(request)
        program = programs[Role.TARGET]
        if grant is not None:
            program = _granted(program, grant, may_draft or (lambda: True))
        spans = run_alone(program, models=models, sampler=sampler, commit=commits.append)
        return sum(commits, ()), commits, spans


def random_pair(vocab_size: int, *, spread: float = 1.0, disagreement: float = 1.0, seed: int = 0) -> Pair:
    """A target and a draft whose logits are the target's with noise."""
    target = random_table(vocab_size, seed=seed, spread=spread)
    noise = random_table(vocab_size, seed=seed + 1, spread=disagreement)
    return Pair(target=TableModel(target), draft=TableModel(target + noise))
