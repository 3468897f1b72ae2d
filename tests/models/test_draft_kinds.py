import json
from pathlib import Path

import pytest

from swiftspec.models.draft_kinds import DraftFacts, draft_facts
from swiftspec.models.drafters import Drafter
from swiftspec.policies import DraftKind, make_policy
from swiftspec.policies.base import check_draft


def test_the_bundled_draft_is_serial() -> None:
    assert draft_facts("demo/draft") == DraftFacts(kind=DraftKind.SERIAL, mask_token=-1)


def test_a_draft_with_a_mask_token_is_parallel(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100, "pard_token": 99}))
    assert draft_facts(tmp_path) == DraftFacts(kind=DraftKind.PARALLEL, mask_token=99, drafter=Drafter.PARD)


@pytest.mark.parametrize("token", [100, -1, True, "a"])
def test_a_mask_token_outside_the_vocabulary_is_refused(tmp_path: Path, token: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100, "pard_token": token}))
    with pytest.raises(ValueError, match=r"config.json: pard_token is .*; expected a token id below 100"):
        draft_facts(tmp_path)


def test_a_policy_refuses_a_draft_of_another_kind() -> None:
    check_draft(make_policy("swiftspec"), DraftKind.PARALLEL)
    with pytest.raises(ValueError, match="policy is swiftspec, which needs a serial or parallel draft"):
        check_draft(make_policy("swiftspec"), DraftKind.HEAD)
