"""Trees of the authors' own code on the same inputs; the records say which code, and how it was run."""

import hashlib
import json
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from swiftspec.policies import Request
from swiftspec.policies.effects import DraftForward, Prefill, Program, Role, TargetForward
from swiftspec.policies.tree import Candidates, Row
from swiftspec.policies.trees.eagle2 import Eagle2Tree
from swiftspec.policies.trees.sequoia import static_tree

VOCAB_SIZE = 12
Tokens = tuple[int, ...]


def trees(name: str) -> list[dict[str, Any]]:
    record = json.loads((Path(__file__).parent / "authors" / f"{name}.json").read_text())
    found: list[dict[str, Any]] = record["trees"]
    return found


@pytest.mark.parametrize("record", trees("sequoia"), ids=lambda record: str(record["acceptance"]))
def test_sequoias_trees_are_worth_as_much_as_those_of_its_dynamic_programme(record: dict[str, Any]) -> None:
    compared = 0
    for num_nodes, of_depths in enumerate(record["tokens"], start=1):
        for num_levels, tokens in enumerate(of_depths, start=1):
            if tokens is not None:
                nodes = static_tree(tuple(record["acceptance"]), num_nodes, num_levels - 1)
                assert sum(node.probability for node in nodes) == pytest.approx(tokens, rel=1e-12)
                compared += 1
    assert compared > 100


def log_probs(path: Tokens) -> list[float]:
    """Log-probabilities of the next token: the softmax of numbers from 0 to 6 that digests of path and token give."""
    names = (",".join(map(str, (*path, token))) for token in range(VOCAB_SIZE))
    logits = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 * 6 for name in names]
    total = log(sum(map(exp, logits)))
    return [logit - total for logit in logits]


def candidates(path: Tokens, count: int) -> Candidates:
    values = log_probs(path)
    tokens = sorted(range(VOCAB_SIZE), key=lambda token: -values[token])[:count]
    return Candidates(tuple(tokens), tuple(values[token] for token in tokens))


def first_verification(program: Program) -> tuple[Row, ...]:
    """Rows of the first verification after a prompt of one token, by a draft that sees the whole path."""
    slots: list[Tokens] = []
    answer: Any = None
    while not isinstance(effect := program.send(answer), TargetForward):
        answer = None
        if isinstance(effect, DraftForward):
            first = len(slots)
            slots += [path_of(row, slots) for row in effect.rows]
            answer = tuple(candidates(path, effect.num_candidates) for path in slots[first:])
        else:
            assert isinstance(effect, Prefill)
    return effect.rows


def path_of(row: Row, slots: Sequence[Tokens]) -> Tokens:
    above = max((path for slot, path in enumerate(slots) if row.ancestors >> slot & 1), key=len, default=())
    return (*above, row.token)


@pytest.mark.parametrize("record", trees("eagle2"), ids=lambda record: f"{record['rows']}-{record['tokens'][0]}")
def test_eagle2s_trees_have_the_nodes_of_its_own_code(record: dict[str, Any]) -> None:
    theirs: list[Tokens] = []
    for token, parent in zip(record["tokens"], record["parents"], strict=True):
        theirs.append((token,) if parent < 0 else (*theirs[parent], token))
    policy = Eagle2Tree(verify_rows=record["rows"], depth=record["depth"], top_k=record["top_k"])
    request = Request(prompt=(record["tokens"][0],), max_new_tokens=9)
    rows = first_verification(policy.programs(request)[Role.TARGET])
    ours: list[Tokens] = []
    for row in rows:
        ours.append(path_of(row, ours))
    assert sorted(ours) == sorted(theirs)
