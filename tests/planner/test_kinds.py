"""Kinds of drafts side by side: what is compared, and what is said of it."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from swiftspec.api import compare_kinds
from swiftspec.artifacts.kinds import KindComparison, KindPoint
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.compare import last_gain
from swiftspec.planner.drafts.named import asked_drafts
from swiftspec.planner.drafts.shapes import Shapes
from swiftspec.planner.for_device import prepare
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.search.option import Option
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.reports.kinds import kind_sections
from swiftspec.reports.model import Doubt, Table

TARGET = "qwen3-14b"
DEPLOYMENT = Deployment(device="h100", num_devices=2, output_tokens=48)
RATES = "0.9,0.85,0.8"


@pytest.fixture(scope="module")
def compared() -> KindComparison:
    return compare_kinds(
        TARGET,
        deployment=DEPLOYMENT,
        drafts={"qwen3-0.6b": None, "eagle3": RATES},
        clients=(1, 8),
        num_jobs=1,
    )


def sentences(compared: KindComparison, key: str) -> list[str]:
    """Sentences of a section."""
    (section,) = (section for section in kind_sections(compared) if section.key == key)
    return [part for part in section.parts if isinstance(part, str)]


def test_a_given_host_time_is_said(compared: KindComparison) -> None:
    given = compared.model_copy(update={"host_s": 4e-4})
    assert "host time" not in " ".join(sentences(compared, "to-know"))
    assert "The host time of a step, 0.400 ms, is given." in " ".join(sentences(given, "to-know"))


def test_kinds_are_all_there_and_say_where_acceptance_comes_from(compared: KindComparison) -> None:
    names = [kind.name for kind in compared.kinds]
    assert names == ["none", "suffix", "qwen3-0.6b", "qwen3-0.6b (own)", "eagle3"]
    assert compared.plain.provenance is None
    assert all(kind.provenance and kind.basis for kind in compared.kinds[1:])
    assert all(len(kind.points) == 2 for kind in compared.kinds)
    own = compared.kinds[3]
    assert {point.split for point in own.points} == {"1+1"}
    assert {point.method for point in own.points} == {"events"}
    assert {point.method for kind in compared.kinds if not kind.own_devices for point in kind.points} == {
        "recorded rounds"
    }


def test_chains_near_the_plausible_best_are_as_good_as_all(
    compared: KindComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speeds are within the noise of a tie, and the break-evens of the others nearly those of their simulations."""
    simulated: list[int] = []

    def every_chain(shapes: Shapes, chains: Sequence[Option], clients: int) -> list[KindPoint]:
        simulated.append(len(chains))
        return [shapes.point(option, clients) for option in chains]

    monkeypatch.setattr(Shapes, "_fastest_chains", every_chain)
    whole = compare_kinds(TARGET, deployment=DEPLOYMENT, drafts={"eagle3": RATES}, clients=(1, 8), num_jobs=1)
    assert max(simulated) > 5
    for found, expected in zip(compared.kinds[-1].points, whole.kinds[-1].points, strict=True):
        assert found.user_tokens_per_s >= 0.985 * expected.user_tokens_per_s
        assert found.pays_above.keys() == expected.pays_above.keys()
        assert found.pays_above == pytest.approx(expected.pays_above, rel=0.1)


def test_more_clients_draft_fewer_tokens_and_gain_less(compared: KindComparison) -> None:
    for kind in compared.kinds[2:]:
        one, many = kind.points
        assert many.num_draft_tokens <= one.num_draft_tokens
        assert many.user_tokens_per_s < one.user_tokens_per_s
        assert many.device_tokens_per_s > one.device_tokens_per_s
        gains = [
            point.user_tokens_per_s / plain.user_tokens_per_s
            for point, plain in zip(kind.points, compared.plain.points, strict=True)
        ]
        assert gains[1] < gains[0]


def test_shares_of_a_round_add_up(compared: KindComparison) -> None:
    for kind in compared.kinds:
        for point in kind.points:
            assert 0 < point.verify_share <= 1
            assert kind.own_devices or point.draft_share + point.verify_share < 1
    assert compared.plain.points[0].tokens_per_round == 1


def test_what_is_printed_names_the_fastest(compared: KindComparison) -> None:
    for load, sentence in zip(compared.clients, sentences(compared, "best"), strict=True):
        kind, point = compared.ranked(load)[0]
        assert kind.name in sentence
        assert f"{point.user_tokens_per_s:.1f}" in sentence
    assert any("Python code" in sentence for sentence in sentences(compared, "acceptance"))


def test_the_bundled_text_wins_only_if_it_is_asked_for() -> None:
    """DeepSeek-V3's MTP is published; suffixes of the bundled text would be faster."""
    deployment = Deployment(device="h200", num_devices=8, quant="fp8", engine="vllm", context=128, output_tokens=64)
    found = compare_kinds("deepseek-v3", deployment=deployment, drafts=["mtp"], clients=(1, 64), num_jobs=1)
    named = {kind.name: kind for kind in found.kinds}
    assert (named["suffix"].is_bundled, named["mtp"].provenance) == (True, "published")
    for clients in found.clients:
        fastest, *_, last = found.ranked(clients)
        assert (fastest[0].name, last[0].name) == ("mtp", "suffix")
        assert last[1].user_tokens_per_s > fastest[1].user_tokens_per_s
    first = kind_sections(found)[0].parts[0]
    assert isinstance(first, Doubt)
    assert first.title.startswith("Warning: acceptance of suffix is that of the bundled text")
    for sentence in sentences(found, "best"):
        assert re.search(r"clients?: mtp with .*; suffix with .* would have .* if your text repeated itself", sentence)
    asked = compare_kinds("deepseek-v3", deployment=deployment, drafts=["mtp", "suffix"], clients=(1,), num_jobs=1)
    assert asked.ranked(1)[0][0].name == "suffix"


def test_rates_of_ones_own_are_given_and_assumed_nowhere() -> None:
    found = compare_kinds(
        TARGET, deployment=DEPLOYMENT, drafts={"eagle3": "2.9@5", "suffix": "1.8@5"}, clients=(1,), num_jobs=1
    )
    assert {kind.provenance for kind in found.kinds[1:]} == {"given"}
    text = found.model_dump_json()
    assert '"assumed"' not in text
    assert not any(isinstance(part, Doubt) for section in kind_sections(found) for part in section.parts)


@pytest.mark.extra("plots")
def test_the_figure_has_a_line_for_every_kind(compared: KindComparison) -> None:
    from swiftspec.reports.figures import kinds_by_load

    speeds, gains = kinds_by_load(compared).axes
    assert len(speeds.get_lines()) == len(gains.get_lines()) == len(compared.kinds)
    dashed = [line.get_label() for line in speeds.get_lines() if line.get_linestyle() == "--"]
    assert dashed == [kind.name for kind in compared.kinds if kind.provenance == "assumed"]


def test_a_schedule_is_that_of_the_rounds() -> None:
    models = planned_pair(TARGET, "eagle3")
    inputs = prepare(DEPLOYMENT, target=models[0], draft=models[1])
    found = draft_schedule(inputs.profile, inputs.trace, num_devices=2, max_running=256)
    assert [each.batch for each in found] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert all(each.tokens_per_s >= each.plain_tokens_per_s for each in found)
    lengths = [each.num_draft_tokens for each in found]
    assert lengths[0] > lengths[-1]


@pytest.mark.parametrize(
    ("gains", "last"),
    [
        ([(1, 2.0), (4, 1.5)], 4.0),
        ([(1, 2.0), (4, 0.5)], 4 ** (2 / 3)),
        ([(1, 0.9), (2, 1.1), (8, 0.9)], 4.0),
        ([(1, 0.9), (2, 0.8)], None),
        ([], None),
    ],
)
def test_a_kind_pays_up_to_where_its_gain_falls_to_one(gains: list[tuple[int, float]], last: float | None) -> None:
    assert last_gain(gains) == (None if last is None else pytest.approx(last))


def test_a_draft_without_acceptance_is_listed_with_the_reason() -> None:
    drafts = ["qwen3-0.6b"]
    found = compare_kinds(TARGET, deployment=DEPLOYMENT, drafts=drafts, clients=(1,), dataset="random", num_jobs=1)
    assert "dataset is 'random'; expected one of" in found.kinds[-1].reason
    assert not found.kinds[-1].points


def test_given_rates_are_used(compared: KindComparison) -> None:
    (eagle3,) = (kind for kind in compared.kinds if kind.name == "eagle3")
    assert eagle3.points[0].tokens_per_round > 1 + 0.9 + 0.85
    assert "0.9" in eagle3.basis


def test_every_kind_of_head_and_the_smallest_model_are_compared_by_default() -> None:
    assert asked_drafts(TARGET, ()) == ["qwen3-0.6b", "pard:qwen3-0.6b", "eagle3", "p-eagle", "dflash", "dspark"]


def test_multi_token_prediction_is_for_targets_with_such_a_layer() -> None:
    assert "mtp" in asked_drafts("glm-4.5-air", ())
    with pytest.raises(ValueError, match="draft is mtp; qwen3-14b has no layer for multi-token prediction"):
        asked_drafts(TARGET, ["mtp"])


def test_outputs_of_one_token_have_no_speed() -> None:
    short = Deployment(device="h100", num_devices=2, output_tokens=1)
    with pytest.raises(ValueError, match="output_tokens is 1; expected at least 2"):
        compare_kinds(TARGET, deployment=short, drafts=["eagle3"], clients=(1,), num_jobs=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": ()}, "clients is empty"),
        ({"clients": (0, 4)}, "clients is 0; expected 1 to 256"),
        ({"drafts": ["eagle3", "EAGLE3"]}, "draft is eagle3 twice"),
        ({"drafts": ["llama-3.2-1b"]}, "draft is llama-3.2-1b, whose vocabulary is that of llama-3"),
        ({"dataset": "none"}, "dataset is 'none'"),
    ],
)
def test_wrong_arguments_are_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"drafts": ["eagle3"], "clients": (1,)} | changes
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        compare_kinds(TARGET, deployment=DEPLOYMENT, num_jobs=1, **arguments)


def test_suffix_decoding_takes_counted_tokens_per_round() -> None:
    loads = (1, 8)
    found = compare_kinds(TARGET, deployment=DEPLOYMENT, drafts={"suffix": "1.8@5"}, clients=loads, num_jobs=1)
    assert [kind.name for kind in found.kinds] == ["none", "suffix"]
    plain, suffix = found.kinds
    assert suffix.basis == "1.8 tokens per round of chains of 5"
    for point, other in zip(suffix.points, plain.points, strict=True):
        assert point.num_draft_tokens == 5
        assert point.tokens_per_round == pytest.approx(1.8, abs=0.05)
        assert 1 < point.user_tokens_per_s / other.user_tokens_per_s < 1.8


@pytest.fixture(scope="module")
def served() -> KindComparison:
    """On vLLM, with a price."""
    vllm = Deployment(device="h100", num_devices=2, engine="vllm", output_tokens=48)
    return compare_kinds(
        TARGET, deployment=vllm, drafts={"eagle3": RATES}, clients=(1, 8), num_jobs=1, price_per_hour=3.6
    )


def table(compared: KindComparison, key: str, title: str) -> list[list[str]]:
    """Cells of the table of a section."""
    (section,) = (section for section in kind_sections(compared) if section.key == key)
    (found,) = (part for part in section.parts if isinstance(part, Table) and part.title.startswith(title))
    return [list(map(str, row.cells)) for row in found.rows]


def test_a_shape_pays_above_the_tokens_per_round_at_which_it_gains_nothing(served: KindComparison) -> None:
    (eagle3,) = (kind for kind in served.kinds if kind.name == "eagle3")
    for point in eagle3.points:
        assert point.gain is not None
        least = point.pays_above[point.num_draft_tokens]
        assert point.tokens_per_round / least == pytest.approx(point.gain.ratio)
        assert list(point.pays_above)[:5] == [1, 2, 3, 4, 5]
        assert sorted(point.pays_above.values()) == list(point.pays_above.values())
    one, many = (point.pays_above for point in eagle3.points)
    assert all(many[tokens] > one[tokens] > 1 for tokens in one)
    assert not any(point.pays_above for point in served.plain.points)
    shown = table(served, "costs", "Tokens per round")
    assert shown[0][:6] == ["eagle3", "1", *(f"{one[tokens]:.2f}" for tokens in (1, 2, 3, 5))]


def test_a_draft_takes_room_and_a_head_the_end_of_cached_prefixes(served: KindComparison) -> None:
    plain, suffix, eagle3 = (kind.memory or pytest.fail(kind.reason) for kind in served.kinds)
    assert plain.draft_bytes == suffix.draft_bytes == 0 < eagle3.draft_bytes
    assert plain.cached_tokens >= suffix.cached_tokens > eagle3.cached_tokens > 0
    assert (plain.read_again, suffix.read_again, eagle3.read_again) == (0, 0, 16)  # a block of vLLM's
    assert table(served, "costs", "Memory")[2][-1] == "16 tokens"


def test_ways_to_use_devices_are_what_as_many_devices_do(compared: KindComparison, served: KindComparison) -> None:
    assert [(use.clients, use.replicas, use.replica_devices) for use in served.uses] == [
        (1, 1, 2),
        (1, 1, 1),
        (8, 1, 2),
        (8, 2, 1),
        (8, 1, 1),
    ]
    vllm = Deployment(device="h100", num_devices=1, engine="vllm", output_tokens=48)
    alone = compare_kinds(TARGET, deployment=vllm, drafts={"eagle3": RATES}, clients=(4, 8), num_jobs=1)
    replicas, single = served.uses[3:]
    for use, load in ((replicas, 4), (single, 8)):
        point = next(kind for kind in alone.kinds if kind.name == use.kind).at(load)
        assert point is not None
        assert use.user_tokens_per_s == point.user_tokens_per_s
        assert use.tokens_per_s == pytest.approx(use.replicas * point.device_tokens_per_s)
    assert not alone.uses
    # A draft of this package's engine has devices of its own, too.
    assert {use.split for use in compared.uses if use.replica_devices == 2} == {"2", "1+1"}


def test_a_price_becomes_that_of_a_million_tokens(compared: KindComparison, served: KindComparison) -> None:
    point = served.plain.points[0]
    (row,) = (row for row in table(served, "kinds", "1 client") if row[0] == "none")
    assert float(row[7]) == pytest.approx(1e3 / point.device_tokens_per_s, rel=0.01)
    without = table(compared, "devices", "The best")
    assert {len(row) + 1 for row in without} == {len(row) for row in table(served, "devices", "The best")}


def test_what_the_times_rest_on_is_said(served: KindComparison) -> None:
    (to_know,) = sentences(served, "to-know")
    assert "The devices' times are composed of op tables of h100-sxm, " in to_know
    mi300x = Deployment(device="mi300x", num_devices=1, engine="vllm", output_tokens=16)
    compared = compare_kinds(TARGET, deployment=mi300x, drafts={"eagle3": RATES}, clients=(1,), num_jobs=1)
    assert "composed of rooflines of mi300x: " in " ".join(sentences(compared, "to-know"))
