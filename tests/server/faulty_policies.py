"""Policies whose programs raise errors, as an installed package. A prompt's first letter says whose program does."""

from pathlib import Path

from tests.cli.tokenizer_files import printable_token
from tests.policies.packages import install_by_hand

SAYS = "as a test wants it, at /some/secret/place"
_CODE = """
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from swiftspec.policies.effects import Role, Row, TargetForward
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec

MARKS = {TARGET_TOKEN: Role.TARGET, DRAFT_TOKEN: Role.DRAFT}


def broken(program, chance):
    # Raises, or asks for a token that there is not, at one of its first effects.
    answer, at, is_odd = None, chance.randrange(12), chance.random() < 0.5
    try:
        for number in range(10**6):
            effect = program.send(answer)
            if number == at and not is_odd:
                raise RuntimeError(SAYS)
            answer = yield TargetForward((Row(10**6, 1, 0),)) if number == at else effect
    except StopIteration:
        return


def faulty(programs, request):
    whose, chance = MARKS.get(request.prompt[0]), Random(repr(request.prompt[:20]))
    return {role: broken(program, chance) if role is whose else program for role, program in programs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyChain(SerialChain):
    name: ClassVar[str] = "faulty_chain"

    def programs(self, request):
        return faulty(SerialChain.programs(self, request), request)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySwiftSpec(SwiftSpec):
    name: ClassVar[str] = "faulty_swiftspec"

    def programs(self, request):
        return faulty(SwiftSpec.programs(self, request), request)
"""


def install_faulty_policies(folder: Path) -> None:
    """Write the package: prompts that begin with T fail in the target, those that begin with D in the draft."""
    values = {"TARGET_TOKEN": printable_token("T"), "DRAFT_TOKEN": printable_token("D"), "SAYS": SAYS}
    text = "\n".join(f"{name} = {value!r}" for name, value in values.items()) + _CODE
    offers = {"faulty_chain": "faulty:FaultyChain", "faulty_swiftspec": "faulty:FaultySwiftSpec"}
    install_by_hand(folder, "faulty", offers, faulty=text)
