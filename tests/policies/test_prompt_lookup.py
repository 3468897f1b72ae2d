import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.effects import Subtree, TargetForward
from swiftspec.policies.lookup.prompt_lookup import Lookup, PromptLookup
from tests.policies.fakes import FakeTarget, Path, requests
from tests.policies.scripted import drive

shapes = st.builds(PromptLookup, num_draft_tokens=st.integers(1, 8), longest_match=st.integers(1, 4))


class Periodic(FakeTarget):
    """Says the same few tokens over and over."""

    def __call__(self, path: Path) -> int:
        return len(path) % (2 + self.seed % 4)


@settings(max_examples=300, deadline=None)
@given(shape=shapes, request=requests(), seed=st.integers(0, 2**16), periodic=st.booleans())
def test_output_is_the_targets_own(shape: PromptLookup, request: Request, seed: int, periodic: bool) -> None:
    target = Periodic(seed=seed) if periodic else FakeTarget(seed=seed)
    run = drive(shape, request, target=target, draft=None)
    assert run.output == target.output(request)


def test_repetition_is_verified_in_whole_chains() -> None:
    target = Periodic(seed=2)  # a period of 4
    shape = PromptLookup(num_draft_tokens=4, longest_match=2)
    run = drive(shape, Request(prompt=(0, 1, 2, 3), max_new_tokens=16), target=target, draft=None)
    # The first token is the prompt's first again. Behind it a whole period of guesses, and the bonus token, every time.
    assert [len(event.effect.rows) for event in run.of(TargetForward)] == [5, 5, 5]


def test_a_continuation_follows_the_last_occurrence_of_the_longest_match() -> None:
    lookup = Lookup(2, max_tokens=3)
    lookup.extend((1, 2, 9, 5, 2, 8, 1, 2))
    assert lookup.subtree() == Subtree.chain(7, (2, 9, 5, 2))  # of (1, 2), not of (2,) which came later
    lookup.extend((2,))
    assert lookup.subtree() == Subtree.chain(8, (2, 2))  # (2, 2) is new; the last 2 before this one was followed by it
    lookup.extend((7,))
    assert lookup.subtree() == Subtree.chain(9, (7,))


def test_search_space_holds_distinct_shapes() -> None:
    space = list(PromptLookup.search_space())
    assert len(set(space)) == len(space)


def test_lookup_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="longest_match is 0; expected at least 1"):
        PromptLookup(longest_match=0)
