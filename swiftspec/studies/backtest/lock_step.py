"""PEARL's own speeds with 70B targets, and SpecBranch's with those of PEARL in the same engine.

PEARL's author prints speeds of three pairs, and how long CodeLlama's two models wait for each other in a serial round:
the times of a verification and of ten draft tokens, taken for Llama's, which are as large. Acceptance is that of
Sequoia's chains on the same data set; for Llama-3.1, which has none, Llama-3's. DeepSeek-Coder has none either.

SpecBranch's table has both policies. As PEARL drafts a window within one verification, its speedup gives the
acceptance, taken as the same everywhere. The prediction is that speedup times SpecBranch's simulated gain over PEARL.
Where and how widely it forks is not known, so the best shape is taken; the published one has a trained predictor, too.
Its two pairs with drafts of 68M parameters are no rows: how long their drafts take is not in the copy of the table.

Three systems have no row, for want of inputs. DSI: of its table of latencies, acceptance and speedups only the range of
the speedups was to be had. EasySpec: of its tables only the best speedups, of drafting and of the whole. Mirror-SD
prints speedups, but neither the acceptance of its trained drafts nor its early exit's nor any forward's time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from swiftspec.acceptance.numerics import root
from swiftspec.acceptance.proxy_pairs import acceptance_for
from swiftspec.artifacts.profile import Profile
from swiftspec.files.document import ModelRef
from swiftspec.policies import make_policy
from swiftspec.policies.asynchronous.specbranch import SpecBranch
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.nano_pearl import Rounds
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Row
from swiftspec.studies.backtest.timed import independent, timed_profile, timed_speed
from swiftspec.timing.timeline import Phase

_SPEED, _SPEEDUP = "tokens/s", "speedup"
_NUM_PROMPTS = 64
_MOST_ROWS = 32  # up to these, forwards are taken as no longer: they are bound by the weights
_LEAST, _MOST = 0.01, 0.9999  # acceptance


def lock_step_rows() -> list[Row]:
    """All rows. Nothing is fitted to them."""
    return [*pearl_rows(), *specbranch_rows()]


def pearl_rows() -> Iterator[Row]:
    """PEARL's speeds from the times of the models' forwards and Sequoia's acceptance."""
    facts = read_facts("lock_step")["pearl"]
    policy = make_policy("pearl", num_draft_tokens=facts["num_draft_tokens"])
    verify_s, draft_s = facts["verification_s"], facts["drafting_s"] / facts["serial_num_draft_tokens"]
    for pair in facts["pairs"]:
        acceptance_model = acceptance_for(pair["target"], pair["draft"], facts["dataset"]).acceptance_model
        profile = _profile(pair, verify_s, draft_s)
        speed = timed_speed(profile, acceptance_model, policy, num_prompts=_NUM_PROMPTS)
        name = f"{pair['target']} + {pair['draft']}, {facts['dataset']}, pearl"
        yield Row.unfitted(name, _SPEED, pair["tokens_per_s"], speed, facts["source"])
        if "speedup" in pair:
            yield Row.unfitted(name, _SPEEDUP, pair["speedup"], speed * verify_s, facts["source"])


def specbranch_rows() -> Iterator[Row]:
    """SpecBranch's speedups from PEARL's."""
    facts = read_facts("lock_step")["specbranch"]
    for pair in facts["pairs"]:
        for dataset, pearl, published in zip(facts["datasets"], pair["pearl"], pair["specbranch"], strict=True):
            name = f"{pair['target']} + {pair['draft']}, {dataset}, specbranch"
            predicted = pearl * _gain(pair, pearl)
            yield Row.unfitted(name, _SPEEDUP, published, predicted, facts["source"])


def pearl_acceptance(speedup: float, count: int) -> float:
    """Probability of a draft token with which PEARL has this speedup, if a verification takes `count` draft steps."""
    return root(lambda acceptance: Rounds.of(acceptance, count).tokens - speedup, _LEAST, _MOST)


def _gain(pair: Mapping[str, Any], pearl: float) -> float:
    """SpecBranch's speed over PEARL's on the same texts, with the best of the forks that plans try."""
    count = pair["num_draft_tokens"]
    profile, acceptance_model = _profile(pair, count, 1.0), independent(pearl_acceptance(pearl, count))
    branching = {replace(shape, num_draft_tokens=count) for shape in SpecBranch.search_space()}
    best = max(timed_speed(profile, acceptance_model, shape) for shape in branching)
    return best / timed_speed(profile, acceptance_model, make_policy("pearl", num_draft_tokens=count))


def _profile(pair: Mapping[str, Any], verify_s: float, draft_s: float) -> Profile:
    seconds = {(role, Phase.PREFILL, 1): verify_s for role in Role}
    for rows in (1, _MOST_ROWS):
        seconds |= {(Role.TARGET, Phase.VERIFY, rows): verify_s, (Role.DRAFT, Phase.EXPAND, rows): draft_s}
    target, draft = (ModelRef(model=pair[role], dtype="bf16") for role in ("target", "draft"))
    return timed_profile(seconds, device="gpu", target=target, draft=draft)
