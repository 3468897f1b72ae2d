"""The page without a browser: well-formed, self-contained, complete, and true to the plan."""

import re
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import pytest

from swiftspec.artifacts.plan import Acceptance, Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace, SamplingParams
from swiftspec.cli.plan import write_page
from swiftspec.files.document import ModelRef
from swiftspec.reports.html import render
from swiftspec.simulator.driver import typical_timeline
from swiftspec.timing.latency import Provenance
from tests.reports.html.samples import CHOSEN_TOKENS_PER_S, candidate, composed_profile, rich_plan, timeline

RECORDED = Path(__file__).resolve().parents[3] / "swiftspec/profiles/demo-zen4-2-cores"
STYLE = files("swiftspec.reports.html").joinpath("report.css").read_text(encoding="utf-8")


@cache
def recorded() -> tuple[Plan, Profile, AcceptanceTrace]:
    plan = Plan.load(RECORDED / "plan.json")
    return plan, Profile.load(RECORDED / plan.profile.path), AcceptanceTrace.load(RECORDED / plan.trace.path)


@cache
def measured_page() -> str:
    plan, profile, trace = recorded()
    return render(plan, profile=profile, timeline=typical_timeline(Planned(plan=plan, profile=profile, trace=trace)))


@cache
def composed_page(weak: float = 0.05) -> str:
    return render(rich_plan(weak=weak), profile=composed_profile(), timeline=timeline())


PAGES = {"measured": measured_page, "composed": composed_page}


def root(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page)


def words(page: str) -> str:
    """Text that a reader sees, or gets from a tooltip or a screen reader."""
    body = root(page).find("body")
    assert body is not None
    spoken = [found.get("aria-label", "") + " " + found.get("title", "") for found in body.iter()]
    return re.sub(r"\s+", " ", " ".join([*body.itertext(), *spoken]))


def sections(page: str) -> list[str | None]:
    return [found.get("id") for found in root(page).iter("section")]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_well_formed_and_small(name: str) -> None:
    page = PAGES[name]()
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert root(page).tag == "html"
    assert len(page.encode()) < 300_000


@pytest.mark.parametrize("name", PAGES)
def test_page_refers_to_nothing_outside_itself(name: str) -> None:
    page = PAGES[name]()
    assert not re.search(
        r"(?:https?:)?//|url\(|@import|@font-face|<script|<link|<img|<iframe", page.partition("<body>")[0]
    )
    outward = {"src", "href", "data", "action", "srcset", "poster"}
    found = [value for tag in root(page).iter() for key, value in tag.attrib.items() if key in outward]
    assert [value for value in found if not value.startswith("#")] == []
    assert {tag.tag for tag in root(page).iter()} & {"script", "link", "img", "iframe", "object", "embed"} == set()


@pytest.mark.parametrize("name", PAGES)
def test_ids_are_unique_and_every_link_leads_to_one(name: str) -> None:
    ids = [tag.attrib["id"] for tag in root(PAGES[name]()).iter() if "id" in tag.attrib]
    assert len(ids) == len(set(ids))
    links = {tag.attrib["href"].removeprefix("#") for tag in root(PAGES[name]()).iter("a")}
    described = {tag.attrib["aria-labelledby"] for tag in root(PAGES[name]()).iter() if "aria-labelledby" in tag.attrib}
    assert links | described <= set(ids)


@pytest.mark.parametrize("name", PAGES)
def test_every_section_with_numbers_cites_its_sources(name: str) -> None:
    for section in root(PAGES[name]()).iter("section"):
        if section.get("id") != "sources":
            cited = [link.attrib["href"] for link in section.iter("a") if link.attrib["href"].startswith("#source-")]
            assert cited, section.get("id")


@pytest.mark.parametrize("name", PAGES)
def test_every_chart_says_in_words_what_it_shows(name: str) -> None:
    charts = list(root(PAGES[name]()).iter("svg"))
    assert len(charts) > 3
    for chart in charts:
        assert chart.get("role") == "img"
        assert re.search(r"\d", chart.attrib["aria-label"])


def test_same_inputs_give_the_same_page() -> None:
    again = render(rich_plan(), profile=composed_profile(), timeline=timeline())
    assert again == composed_page()


def test_page_renders_at_once() -> None:
    plan, profile, trace = recorded()
    rounds = typical_timeline(Planned(plan=plan, profile=profile, trace=trace))
    start_s = time.process_time()
    render(plan, profile=profile, timeline=rounds)
    assert time.process_time() - start_s < 5  # it takes a tenth of a second


def test_measured_plan_shows_what_it_has_and_leaves_out_the_rest() -> None:
    assert sections(measured_page()) == [
        *("policies", "splits", "devices", "timeline", "round", "provenance", "acceptance", "rejected", "sources"),
    ]


def test_composed_plan_shows_everything() -> None:
    assert sections(composed_page()) == [
        *("policies", "splits", "devices", "timeline", "round", "provenance", "acceptance", "machine"),
        *("sensitivity", "rejected", "sources"),
    ]


def test_without_a_timeline_the_rest_still_stands() -> None:
    plan, profile, _ = recorded()
    assert sections(render(plan, profile=profile, timeline=None)) == [
        *("policies", "splits", "devices", "provenance", "acceptance", "rejected", "sources"),
    ]


def test_answer_is_one_sentence_with_what_was_decided() -> None:
    heading = root(composed_page()).find(".//h1")
    assert heading is not None
    sentence = re.sub(r"\s+", " ", "".join(heading.itertext()))
    assert sentence.startswith(
        "swiftspec 4+4 gives one user 347.2 tokens/s (95 % interval 329.8 to 364.6) with verify_rows=16, expand_rows=8 "
    )


def test_all_figures_of_the_plan_are_there() -> None:
    plan, text = rich_plan(), words(composed_page())
    for shown in plan.candidates.values():
        prediction = shown.prediction
        for value in (
            prediction.metrics.figures.tokens_per_s,
            prediction.tokens_per_s_low,
            prediction.tokens_per_s_high,
        ):
            assert f"{value:.1f}" in text
    for cell in plan.explored:
        assert f"{cell.policy} {cell.split}: {cell.tokens_per_s:.1f} tokens/s" in text
    for case in plan.sensitivities:
        assert f"{case.change}" in text
        assert f"{case.best_tokens_per_s:.1f}" in text
        assert f"{case.tokens_per_s / CHOSEN_TOKENS_PER_S * 100 - 100:+.1f} %" in text
    for reason, count in plan.rejected.items():
        policy, _, rest = reason.partition(": ")
        assert rest in text
        assert f"{policy} {count}" in text
    for group in plan.memory:
        assert f"{group.used_bytes / 1e9:.1f} GB of {group.usable_bytes / 1e9:.1f} GB" in text
    for collective in plan.collectives:
        assert all(f"{seconds * 1e6:.1f}" in text for seconds in collective.seconds.values())
    assert plan.acceptance is not None
    assert plan.acceptance.basis in text


def test_files_and_commands_behind_the_numbers_are_named() -> None:
    plan, profile, _ = recorded()
    text = words(measured_page())
    for basis in (plan.profile, plan.trace):
        assert basis.path in text
        assert basis.sha256 in text
    for origin in (plan.origin, profile.origin):
        assert origin.command in text
        assert origin.created_utc in text
    assert all(f"Composed from {source}." in words(composed_page()) for source in composed_profile().sources)


def test_heat_maps_are_dense_and_frame_the_chosen_split() -> None:
    single, pairs = (table for table in root(composed_page()).iter("table") if table.get("class") == "heat")
    shapes = [(len(list(table.iter("tr"))), [span.text for span in table.iter("span")]) for table in (single, pairs)]
    # 8 groups and 28 splits go down, the policies across, the fastest first.
    assert shapes == [(9, ["serial_tree", "autoregressive"]), (29, ["swiftspec", "ssd"])]
    (framed,) = [cell for table in (single, pairs) for cell in table.iter("td") if "best" in cell.get("class", "")]
    assert framed.text == "347"
    assert [cell for cell in pairs.iter("td") if cell.text == "\N{EN DASH}"] == []


def test_estimates_are_marked_as_such_in_map_and_table() -> None:
    plan = rich_plan()
    rough = tuple(cell.model_copy(update={"estimated": cell.num_devices < 8}) for cell in plan.explored)
    page = root(render(plan.model_copy(update={"explored": rough}), profile=composed_profile(), timeline=None))
    marked = {
        section.get("id"): sum("".join(cell.itertext()).startswith("~") for cell in section.iter("td"))
        for section in page.iter("section")
    }
    assert marked["splits"] == sum(cell.estimated for cell in rough)
    assert marked["devices"] == 3 * 7  # speed, speed per device, time per token
    assert "~" not in "".join(words(composed_page()).split("~ marks"))


def test_estimates_do_not_beat_the_choice_on_as_many_devices() -> None:
    plan = rich_plan()
    (eight,) = (cell for cell in plan.explored if (cell.policy, cell.split) == ("ssd", "4+4"))
    rough = eight.model_copy(update={"tokens_per_s": 999.0, "estimated": True})
    explored = tuple(rough if cell is eight else cell for cell in plan.explored)
    assert plan.model_copy(update={"explored": explored}).fastest_by_devices[8].policy == "swiftspec"


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (None, "Engine: not stated in this plan."),
        ("swiftspec", "Engine: swiftspec, with the op tables' kernels"),
        ("vllm", "Engine: vLLM's kernels and host time."),
    ],
)
def test_whose_engine_is_assumed_stands_at_the_top(engine: str | None, said: str) -> None:
    plan = rich_plan().model_copy(update={"engine": engine})
    (header,) = root(render(plan, profile=composed_profile(), timeline=None)).iter("header")
    text = "".join(header.itertext())
    assert said in text


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.7, top_k=20)], ids=str)
def test_that_output_is_sampled_stands_at_the_top(sampling: SamplingParams) -> None:
    plan = rich_plan().model_copy(update={"sampling": sampling})
    (header,) = root(render(plan, profile=composed_profile(), timeline=None)).iter("header")
    said = "Output is sampled: temperature 0.7, top_k 20, seed 0."
    assert (said in "".join(header.itertext())) is not sampling.is_greedy


def test_what_intervals_leave_out_is_said_with_what_the_prediction_rests_on() -> None:
    plan = rich_plan().model_copy(update={"known_errors": {"acceptance": None}})
    page = root(render(plan, profile=composed_profile(), timeline=None))
    section = next(found for found in page.iter("section") if found.get("id") == "provenance")
    assert "Predictions: the error of acceptance is unknown and not included." in "".join(section.itertext())


def test_policies_that_share_a_reason_are_one_row() -> None:
    rejected = {"ssd: too slow": 3, "pearl: too slow": 4, "ssd: too wide": 5, "out of room": 2}
    plan = rich_plan().model_copy(update={"rejected": rejected})
    page = root(render(plan, profile=composed_profile(), timeline=None))
    section = next(found for found in page.iter("section") if found.get("id") == "rejected")
    rows = [" | ".join("".join(cell.itertext()) for cell in row) for row in section.iter("tr")]
    assert rows[1:] == ["too slow | 7", "pearl 4, ssd 3", "too wide | 5", "ssd 5", "out of room | 2"]


@pytest.mark.parametrize(("weak", "warned"), [(0.2, False), (0.21, True)])
def test_a_plan_that_rests_on_too_little_says_so_at_the_top(weak: float, warned: bool) -> None:
    warnings = [tag for tag in root(composed_page(weak)).iter("p") if tag.get("class") == "warning"]
    assert len(warnings) == warned
    if warned:
        assert "".join(warnings[0].itertext()) == (
            "An estimate: 21.0 % of the predicted time rests on no measurement (roofline or assumed). What it rests on"
        )


def test_acceptance_of_another_pair_is_said_at_the_top() -> None:
    plan = rich_plan()
    assumed = Acceptance(basis="nothing is published; another pair stands in", provenance=Provenance.ASSUMED)
    page = root(
        render(plan.model_copy(update={"acceptance": assumed}), profile=composed_profile(), timeline=None),
    )
    (warning,) = [tag for tag in page.iter("p") if tag.get("class") == "warning"]
    assert "".join(warning.itertext()) == "Warning: acceptance is assumed. What it rests on"
    assert "Acceptance (assumed): nothing is published; another pair stands in." in "".join(page.itertext())


def test_acceptance_on_one_narrow_data_set_is_said_at_the_top_and_leads_to_its_basis() -> None:
    narrow = Acceptance(
        basis="fitted to a chain", provenance=Provenance.PUBLISHED, warning="known only on InstructCoder (code editing)"
    )
    plan = rich_plan().model_copy(update={"acceptance": narrow})
    page = root(render(plan, profile=composed_profile(), timeline=None))
    (warning,) = [tag for tag in page.iter("p") if tag.get("class") == "warning"]
    assert (warning.text or "").strip() == "Warning: acceptance is known only on InstructCoder (code editing)."
    assert [link.get("href") for link in warning.iter("a")] == ["#acceptance"]
    section = next(found for found in page.iter("section") if found.get("id") == "acceptance")
    assert [tag.text for tag in section.iter("p")] == ["Acceptance (published): fitted to a chain."]


def test_several_target_groups_have_no_speed_of_light() -> None:
    several = candidate("dsi", 113.4, target=6, draft=2, target_groups=6)
    plan = rich_plan().model_copy(update={"alternatives": (several,)})
    page = root(render(plan, profile=composed_profile(), timeline=None))
    section = next(found for found in page.iter("section") if found.get("id") == "policies")
    assert [row[-1].text for row in section.iter("tr") if row.get("class") != "remark"] == [
        "of light",
        "88.4 %",
        "\N{EN DASH}",
    ]


def test_provenance_shares_are_of_the_chosen_candidate() -> None:
    section = next(found for found in root(composed_page()).iter("section") if found.get("id") == "provenance")
    names = ["".join(item.itertext()) for item in section.iter("li")]
    assert names == ["published 65.0 %", "interpolated 30.0 %", "assumed 5.0 %"]
    assert [rect.get("class") for rect in section.iter("rect")] == [
        f"paint-{provenance}" for provenance in (Provenance.PUBLISHED, Provenance.INTERPOLATED, Provenance.ASSUMED)
    ]


def test_text_from_outside_is_text() -> None:
    hostile = "</title><script>alert(1)</script>&amp;"
    plan = rich_plan().model_copy(update={"device": hostile, "target": ModelRef(model=hostile, dtype='"><b>')})
    page = render(plan, profile=composed_profile(), timeline=timeline())
    assert "<script" not in page
    assert hostile in words(page)
    assert root(page).findtext("head/title") == f"{plan.models} on 8 \N{MULTIPLICATION SIGN} {hostile}"


def test_command_writes_the_page(tmp_path: Path) -> None:
    plan, profile, trace = recorded()
    write_page(tmp_path / "plan.html", Planned(plan=plan, profile=profile, trace=trace))
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == measured_page()


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def schemes() -> dict[str, dict[str, str]]:
    light, dark = (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block)) for block in STYLE.split(":root {")[1:3])
    return {"light": light, "dark": dark}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_it_is_on(scheme: str) -> None:
    colours = schemes()[scheme]
    grounds = ["paper", "panel", "warning", *(f"heat-{level}" for level in range(6))]
    assert {ground: contrast(colours["ink"], colours[ground]) >= 4.5 for ground in grounds} == dict.fromkeys(
        grounds, True
    )
    assert all(contrast(colours[text], colours["paper"]) >= 4.5 for text in ("soft", "accent"))
    assert all(contrast(colours[text], colours["panel"]) >= 4.5 for text in ("soft", "accent"))
    assert contrast(colours["accent"], colours["warning"]) >= 4.5


def test_both_schemes_name_the_same_colours_and_every_paint_has_one() -> None:
    light, dark = schemes().values()
    assert light.keys() == dark.keys()
    used = set(re.findall(r'class="(?:swatch )?paint-([a-z]+)', composed_page() + measured_page()))
    assert used
    assert used <= set(re.findall(r"\.paint-([a-z]+) ", STYLE))


def test_captions_are_outside_of_what_scrolls() -> None:
    """One inside is cut off with its table on a phone."""
    page = root(PAGES["composed"]())
    assert not list(page.iter("caption"))
    figures = [figure for figure in page.iter("figure") if figure.find(".//table") is not None]
    assert len(figures) == len(list(page.iter("table")))
    for figure in figures:
        caption, box = figure
        assert (caption.tag, box.get("class")) == ("figcaption", "scroll")
        assert "".join(caption.itertext()).strip()
