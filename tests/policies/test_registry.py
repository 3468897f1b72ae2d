"""Policies of other packages, as the registry finds them: those that work, and every kind of fault."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Candidate
from swiftspec.cli.app import main
from swiftspec.policies import POLICIES, make_policy, policy_class, policy_classes, policy_names, registry
from swiftspec.policies.registry import offers, package_of, plainness
from tests.cli.samples import candidate
from tests.policies.packages import install_by_hand, listing

Install = Callable[..., None]
GOOD = listing("settled_tree.py")


def forget() -> None:
    for cached in (registry._entry_points, registry._offer, registry._warn):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs packages for this test alone."""
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package: str, entry_points: dict[str, str], **code: str) -> None:
        install_by_hand(tmp_path, package, entry_points, **code)
        forget()

    yield installed
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    monkeypatch.undo()
    forget()


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_policy_of_another_package_stands_after_ours(install: Install) -> None:
    install("good", {"settled_tree": "good_policy:SettledTree"}, good_policy=GOOD)
    assert policy_names() == [*POLICIES, "settled_tree"]
    assert [policy.name for policy in policy_classes()] == policy_names()
    assert [policy.name for policy in policy_classes({"settled_tree", "pearl"})] == ["pearl", "settled_tree"]
    assert plainness("settled_tree") > plainness("swiftspec") > plainness("autoregressive")
    assert (package_of("settled_tree"), package_of("swiftspec")) == ("good 1.0", None)
    made = make_policy("settled_tree", verify_rows=6)
    assert type(made) is policy_class("settled_tree")
    assert made.target_rows == 6
    with pytest.raises(ValueError, match="settled_tree has no field 'rows'; it has verify_rows, expand_rows, "):
        make_policy("settled_tree", rows=3)


def test_names_are_known_without_an_import(install: Install) -> None:
    install("good", {"settled_tree": "good_policy:SettledTree"}, good_policy=GOOD)
    assert "settled_tree" in policy_names()
    make_policy("swiftspec")
    assert package_of("settled_tree") == "good 1.0"
    assert "good_policy" not in sys.modules


def test_types_of_fields_may_be_written_as_text(install: Install) -> None:
    code = f"from __future__ import annotations\n{GOOD.partition(chr(10))[2]}"
    install("good", {"settled_tree": "good_policy:SettledTree"}, good_policy=code)
    with pytest.raises(ValueError, match=r"settled_tree\.verify_rows is 'x'; expected a whole number"):
        make_policy("settled_tree", verify_rows="x")


HALF = "layout: ClassVar[Layout] = Layout.COLOCATED"
FAULTS = {
    "import": ("import nothing_of_this_name", "cannot be loaded (ModuleNotFoundError: No module named 'nothing_of_"),
    "raises": ("raise RuntimeError('not\\n today')", "cannot be loaded (RuntimeError: not today)"),
    "class": (changed("class SettledTree", "class Other"), "cannot be loaded (AttributeError: module 'bad_policy'"),
    "instance": ("SettledTree = 3", "is not a frozen dataclass"),
    "frozen": (changed("frozen=True, ", ""), "is not a frozen dataclass"),
    "member": (changed("def draft_rows", "def draft_slots"), "has no draft_rows"),
    "space": (changed("def search_space", "def shapes"), "has no search_space"),
    "name": (changed('"settled_tree"', '"settled"'), "has the name 'settled'; expected that of its entry point, "),
    "layout": (changed(HALF, HALF.replace("Layout.COLOCATED", "'both'")), "has the layout 'both'; expected one of La"),
    "field": (changed("expand_rows: int = 4", "expand_rows: str = '4'"), "has the field expand_rows, whose type"),
    "default": (changed("expand_rows: int = 4", "expand_rows: int"), "cannot be loaded (TypeError: "),
    "count": (changed("return 8 * self.verify_rows", "return 8.5"), "has draft_rows 8.5; expected a whole number, at "),
    "roles": (changed("Layout.COLOCATED", "Layout.DISAGGREGATED"), "has programs of target; a disaggregated policy "),
    "shapes": (changed("for verify_rows in (8, 12, 16)", "for verify_rows in ()"), "has a search_space that "),
}


@pytest.mark.parametrize(("code", "fault"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_used_is_a_sentence(install: Install, code: str, fault: str) -> None:
    install("bad", {"settled_tree": "bad_policy:SettledTree"}, bad_policy=code)
    (offer,) = offers()
    sentence = "package bad 1.0: policy settled_tree (bad_policy:SettledTree) " + fault
    assert offer.fault.startswith(sentence)
    assert (len(offer.fault.splitlines()), offer.policy) == (1, None)
    with pytest.raises(ValueError, match="bad_policy") as caught:
        make_policy("settled_tree")
    assert str(caught.value) == offer.fault


def test_a_broken_policy_is_a_warning_once_where_all_are_asked_for(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("bad", {"settled_tree": "bad_policy:SettledTree"}, bad_policy="raise ImportError('no')")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [policy.name for policy in policy_classes()] == list(POLICIES)
    (record,) = caplog.records
    assert record.getMessage() == f"{offers()[0].fault}; it is left out"


def test_the_name_of_a_built_in_policy_stays_its_own(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("bad", {"pearl": "bad_policy:Pearl"}, bad_policy="raise ImportError('no')")
    assert policy_class("pearl") is POLICIES["pearl"]
    assert (package_of("pearl"), policy_names()) == (None, list(POLICIES))
    assert policy_classes() == list(POLICIES.values())
    assert "package bad 1.0: policy pearl (bad_policy:Pearl) has the name of a built-in policy" in caplog.text


def test_a_name_that_two_packages_offer_is_neithers(install: Install) -> None:
    for package in ("second", "first"):
        install(package, {"settled_tree": f"{package}_policy:SettledTree"}, **{f"{package}_policy": GOOD})
    with pytest.raises(
        ValueError, match=r"^policy settled_tree is offered by the packages first 1\.0 and second 1\.0$"
    ):
        policy_class("settled_tree")


def test_a_broken_policy_that_is_asked_for_is_a_users_mistake(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad", {"settled_tree": "bad_policy:SettledTree"}, bad_policy="raise ImportError('no')")
    pair = ["--target", "llama-3-70b", "--draft", "llama-3.2-3b", "--device", "h800-sxm", "--devices", "8"]
    assert main(["plan", *pair, "--policy", "settled_tree", "--out", "-"]) == 2
    sentence = "package bad 1.0: policy settled_tree (bad_policy:SettledTree) cannot be loaded (ImportError: no)"
    assert capsys.readouterr().err == f"swiftspec: error: {sentence}\n"
    assert main(["list", "policies"]) == 0
    captured = capsys.readouterr()
    assert f"Cannot be used: {sentence}" in " ".join(captured.out.split())
    assert captured.err == ""


def test_a_misspelt_policy_may_have_been_meant(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("good", {"settled_tree": "good_policy:SettledTree"}, good_policy=GOOD)
    pair = ["--target", "llama-3-70b", "--draft", "llama-3.2-3b", "--device", "h800-sxm", "--devices", "8"]
    assert main(["plan", *pair, "--policy", "setled_tree", "--out", "-"]) == 2
    assert "--policy is 'setled_tree'; did you mean settled_tree" in capsys.readouterr().err


def test_a_plan_knows_the_package_of_its_policy(install: Install) -> None:
    plain = candidate("serial_chain", tokens_per_s=10.0)
    assert "package" not in plain.model_dump(mode="json")
    theirs = {**plain.model_dump(mode="json"), "policy": "settled_tree", "package": "good 1.0"}
    with pytest.raises(ValueError, match=r"policy is 'settled_tree' of the package good 1\.0, which is not installed"):
        Candidate.model_validate(theirs)
    install("good", {"settled_tree": "good_policy:SettledTree"}, good_policy=GOOD)
    read = Candidate.model_validate(theirs)
    assert read.build() == make_policy("settled_tree")
    assert read.model_dump(mode="json")["package"] == "good 1.0"


def test_built_in_policies_are_made_without_looking_for_others() -> None:
    code = (
        "import sys; from swiftspec.policies import make_policy, registry; make_policy('swiftspec', verify_rows=4);"
        "print(registry._entry_points.cache_info().misses)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
