import random

import numpy as np
import pytest
import torch

from swiftspec.engine.model.sampling.chain_sampler import ChainSampler, ProposalPayload, most_proposal_bytes
from swiftspec.engine.model.sampling.output_scores import OutputScores
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.policies.effects import Role, Row, Stop, Subtree, Verdict

SAMPLER = Sampler(temperature=1.0, seed=3, acceptance="residual")
VOCABULARY = 11
CHAIN = (Row(4, 2, 0), Row(5, 3, 0b1), Row(6, 4, 0b11))


def ends(sampler: Sampler = SAMPLER, vocab_size: int = VOCABULARY) -> tuple[ChainSampler, ChainSampler]:
    """A draft's and a target's, which have read the same two tokens."""
    made = (ChainSampler(sampler, vocab_size=vocab_size), ChainSampler(sampler, vocab_size=vocab_size))
    for end in made:
        end.prefill(Role.DRAFT, (1, 2))
    return made


def logits(num_rows: int, vocab_size: int = VOCABULARY, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def test_a_draft_of_the_targets_law_is_accepted_if_its_proposals_have_come() -> None:
    for seed in range(30):
        sampler, given = Sampler(temperature=1.0, seed=seed, acceptance="residual"), logits(2, seed=seed)
        draft, target = ends(sampler)
        (candidates,) = draft.propose(CHAIN[:1], given[:1], 1)
        chain = Subtree.chain(2, (4, *candidates.tokens))
        payload = ProposalPayload(draft).outgoing(chain)
        assert 0 < len(payload) <= most_proposal_bytes(VOCABULARY, 1)
        assert ProposalPayload(target).takes(chain, payload)
        assert target.choose(chain.rows(), given)[:1] == candidates.tokens


def test_each_proposal_is_sent_once_to_each_peer_until_it_is_decided() -> None:
    draft, _ = ends()
    draft.propose(CHAIN, logits(3), 2)
    one, other = ProposalPayload(draft), ProposalPayload(draft)
    short, long = Subtree.chain(2, (4, 5)), Subtree.chain(2, (4, 5, 6))
    sizes = [len(one.outgoing(short)), len(one.outgoing(long)), len(one.outgoing(long))]
    assert sizes[0] == 2 * sizes[1] > sizes[2] == 0
    assert len(other.outgoing(long)) == 3 * sizes[1]
    assert one.outgoing(Verdict((4,))) == one.outgoing(Stop()) == b""
    one.outgoing(Subtree.chain(9, (1, 2)))
    assert ProposalPayload(draft).outgoing(long) == b""


def test_a_chain_of_another_text_has_no_proposals_here() -> None:
    draft, target = ends()
    target.prefill(Role.TARGET, (9,))
    draft.propose(CHAIN, logits(3), 1)
    chain = Subtree.chain(2, (4, 5))
    assert ProposalPayload(target).takes(chain, ProposalPayload(draft).outgoing(chain))
    rows = (Row(4, 3, 0), Row(5, 4, 0b1))
    own = Sampler(temperature=1.0, seed=3).choose(logits(2), [3, 4])
    assert target.choose(rows, logits(2)) == tuple(own)


def test_a_token_that_comes_late_counts_when_the_target_chooses_again() -> None:
    found = set()
    for seed in range(60):
        sampler = Sampler(temperature=1.0, seed=seed, acceptance="residual")
        draft, target = ends(sampler)
        (drawn,) = draft.propose(CHAIN[:1], logits(1, seed=1), 1)[0].tokens
        before = target.choose(CHAIN[:1], logits(1, seed=2))
        assert target.choose_again(((),)) == before
        chain = Subtree.chain(2, (4, drawn))
        assert ProposalPayload(target).takes(chain, ProposalPayload(draft).outgoing(chain))
        after = target.choose_again(((drawn,),))
        found.add((before == after, after == (drawn,)))
    assert found >= {(True, True), (False, True), (False, False)}


def test_a_large_vocabulary_is_cut_to_its_likeliest_tokens() -> None:
    size = 10_000
    draft, target = ends(vocab_size=size)
    draft.propose(CHAIN[:1], logits(1, size), 1)
    chain = Subtree.chain(2, (4, 5))
    payload = ProposalPayload(draft).outgoing(chain)
    assert len(payload) <= most_proposal_bytes(size, 1) < 8 * size
    assert ProposalPayload(target).takes(chain, payload)
    (held,) = target.held.values()
    assert np.count_nonzero(held.proposal.shares) == 4096
    assert held.proposal.shares.sum() == pytest.approx(1.0, abs=1e-5)


def test_what_no_draft_sends_is_refused() -> None:
    draft, target = ends()
    draft.propose(CHAIN, logits(3), 2)
    chain = Subtree.chain(2, (4, 5, 6))
    payload = ProposalPayload(draft).outgoing(chain)
    wrong = [payload[:-1], payload + b"\0", payload.replace(b"\x0a\0\0\0", b"\x0b\0\0\0")]
    wrong.append(payload[:-4] + np.float32(np.nan).tobytes())
    wrong.append(payload[:-4] + np.float32(-1).tobytes())
    assert [ProposalPayload(target).takes(chain, each) for each in wrong] == [False] * len(wrong)
    assert not ProposalPayload(target).takes(Verdict((1,)), payload)
    assert ProposalPayload(target).takes(chain, b"")
    rng = random.Random(0)
    for _ in range(500):
        bent = bytearray(payload)
        bent[rng.randrange(len(bent))] = rng.randrange(256)
        ProposalPayload(target).takes(chain, bytes(bent))  # raises nothing


def test_log_probs_are_of_what_was_chosen_again() -> None:
    scores = OutputScores((1, 2), 0)
    scores.prefill((1,), 0, 2, logits(1))
    given = logits(1, seed=5)
    scores.forward((Row(2, 1, 0),), (3,), given, is_final=False)
    scores.choose_again((7,))
    assert scores.take((7,))[0][0] == pytest.approx(given.log_softmax(-1)[0, 7].item())
