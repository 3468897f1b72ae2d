"""What a kind of draft usually has on a class of text."""

import pytest

from swiftspec.acceptance.lengths import unconditional_rates
from swiftspec.acceptance.records import published_records
from swiftspec.acceptance.texts import TextClass, class_of, of_text
from swiftspec.acceptance.usual import UsualRates, family_of, records_without, usual_rates
from swiftspec.policies import DraftKind


def tokens(found: UsualRates) -> float:
    return 1 + sum(unconditional_rates(found.rates))


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        ("MT-Bench", TextClass.CHAT),
        ("mt-bench", TextClass.CHAT),
        ("ShareGPT", TextClass.CHAT),
        ("Arena-Hard", TextClass.CHAT),
        ("HumanEval", TextClass.CODE),
        ("LCB", TextClass.CODE),
        ("LiveCodeBench", TextClass.CODE),
        ("SPEED-Bench qualitative split, coding", TextClass.CODE),
        ("InstructCoder (one prompt, 877 output tokens)", TextClass.EDITS),
        ("SWE-bench", TextClass.EDITS),
        ("Math500", TextClass.MATHEMATICS),
        ("AIME25", TextClass.MATHEMATICS),
        ("CNN/DailyMail", TextClass.SUMMARIES),
        ("random", TextClass.RANDOM),
        ("random, in a chat template", TextClass.CHAT),
        ("summaries", TextClass.SUMMARIES),
        ("SPEED-Bench", None),
        ("", None),
    ],
)
def test_a_data_sets_name_tells_its_class(dataset: str, text: TextClass | None) -> None:
    assert class_of(dataset) is text


def test_a_class_is_of_its_own_class() -> None:
    assert [class_of(text) for text in TextClass] == list(TextClass)


def test_a_named_data_set_comes_before_its_class() -> None:
    names = ("GSM8K", "MATH", "HumanEval")
    assert of_text(names, "gsm8k", str) == ["GSM8K"]
    assert of_text(names, "AIME", str) == ["GSM8K", "MATH"]
    assert of_text(names, "CNN/DailyMail", str) == []
    assert of_text(names, None, str) == list(names)


@pytest.mark.parametrize("family", ["eagle3", "mtp", "dflash", "dspark", "peagle"])
def test_chat_is_harder_than_code_and_mathematics(family: str) -> None:
    code, mathematics, chat = (tokens(usual_rates(family, text, 3)) for text in ("code", "mathematics", "chat"))
    assert chat < min(code, mathematics)


def test_looking_up_pays_where_text_is_copied() -> None:
    edits, chat = (tokens(usual_rates("ngram", text, 5)) for text in ("SWE-bench", "ShareGPT"))
    assert edits > 1.8 * chat
    assert usual_rates("suffix", "ShareGPT", 5).rates == usual_rates("ngram", "ShareGPT", 5).rates


def test_random_texts_are_no_usual_texts() -> None:
    random, every = usual_rates("mtp", "random", 3), usual_rates("mtp", None, 3)
    assert tokens(random) > tokens(every)
    assert all(class_of(one.dataset) is not TextClass.RANDOM for one in every.records)


def test_a_head_with_many_records_counts_once() -> None:
    found = usual_rates("eagle3", "chat", 3)
    assert found.num_drafters < len(found.records)
    one = [record for record in found.records if record.target == "qwen3-32b"]
    alone = usual_rates("eagle3", "chat", 3, records=[*one, *one])
    assert alone.rates == pytest.approx(usual_rates("eagle3", "chat", 3, records=one).rates)


def test_few_drafters_tell_less_than_many() -> None:
    many, one = usual_rates("eagle3", "chat", 3), usual_rates("pard", "chat", 3)
    assert 0.1 < many.spread < one.spread < 0.5
    assert one.num_drafters == 1


def test_the_sources_of_a_row_can_be_left_out() -> None:
    every = len(published_records())
    for source in (
        "github.com/tomasruizt/vllm-scripts logs",
        "SGLang cookbook (2026)",
        "vLLM blog 2026-03-13 P-EAGLE (figures read)",
        "sgl-project/SpecForge issue 339",
    ):
        assert 0 < len(records_without(source)) < every
    assert len(records_without("somebody else")) == every


def test_a_drafters_name_tells_its_kind() -> None:
    names = {
        "RedHatAI/Qwen3-32B-speculator.eagle3": "eagle3",
        "amazon/GPT-OSS-20B-P-EAGLE": "peagle",
        "z-lab/Qwen3-8B-DFlash-b16": "dflash",
        "yuhuili/EAGLE-LLaMA3.1-Instruct-8B": "eagle",
    }
    assert {name: family_of(name, DraftKind.HEAD) for name in names} == names
    assert family_of("qwen3-1.7b", DraftKind.SERIAL) == "draft model"


def test_a_kind_that_nobody_measured_has_no_usual_rates() -> None:
    with pytest.raises(ValueError, match="acceptance of medusa is not published anywhere"):
        usual_rates("medusa", "code", 3)
