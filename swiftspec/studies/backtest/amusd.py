"""AMUSD's milliseconds per token, from plain and serial decoding of the same pair on the same machine.

Inputs are the time of a plain step, which is a verification of one row, and of the serial rounds their two forwards and
their tokens: from these follows the probability of a draft token, the same everywhere. The serial time itself is no
input, and is predicted, too. A third data set, MT-Bench, has no traces.
"""

from collections.abc import Iterator, Mapping

from swiftspec.acceptance.numerics import root
from swiftspec.artifacts.profile import Profile
from swiftspec.files.document import ModelRef
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Row
from swiftspec.studies.backtest.timed import independent, timed_profile, timed_speed
from swiftspec.timing.timeline import Phase

_FACTS = read_facts("amusd")
_TARGET, _DRAFT = (ModelRef(model=_FACTS[role], dtype="fp16") for role in ("target", "draft"))
_CHAIN = _FACTS["num_draft_tokens"]
_LOOKAHEAD = 2  # the released code's


def amusd_rows() -> list[Row]:
    """Serial decoding and AMUSD, on each data set."""
    return [row for dataset, figures in _FACTS["datasets"].items() for row in _rows(dataset, figures)]


def _rows(dataset: str, figures: Mapping[str, float]) -> Iterator[Row]:
    policies = {
        "serial": make_policy("serial_chain", num_draft_tokens=_CHAIN),
        "amusd": make_policy("amusd", lookahead=_LOOKAHEAD),
    }
    for name, policy in policies.items():
        title = f"{_FACTS['target']} + {_FACTS['draft']}, {dataset}, {policy.name}"
        yield Row.unfitted(title, "ms per token", figures[name], _token_ms(figures, policy), _FACTS["source"])


def _token_ms(figures: Mapping[str, float], policy: Policy) -> float:
    return 1e3 / timed_speed(_profile(figures), independent(_acceptance(figures["tokens"])), policy)


def _acceptance(tokens: float) -> float:
    """Probability of every draft token with which a chain has so many tokens per verification."""
    return root(lambda share: sum(share**position for position in range(_CHAIN + 1)) - tokens, 0.0, 1.0)


def _profile(figures: Mapping[str, float]) -> Profile:
    plain_s, verify_s, draft_s = (1e-3 * figures[name] for name in ("autoregressive", "verification", "draft_step"))
    seconds = {(role, Phase.PREFILL, 1): plain_s for role in Role}
    seconds |= {(Role.TARGET, Phase.VERIFY, 1): plain_s, (Role.TARGET, Phase.VERIFY, _CHAIN + 1): verify_s}
    # Beyond the rows of a chain, verifications are taken as no longer: they are bound by the weights.
    seconds |= {(Role.TARGET, Phase.VERIFY, 32): verify_s, (Role.DRAFT, Phase.EXPAND, 1): draft_s}
    return timed_profile(seconds, device="gpu", target=_TARGET, draft=_DRAFT)
