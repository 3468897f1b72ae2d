"""Verbs and flags as they were called before: what becomes of them."""

import pytest

from swiftspec.cli.app import main
from swiftspec.cli.renamed import renewed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plan --quant fp8 --draft-quant bf16", "plan --dtype fp8,bf16"),
        ("plan --draft-quant int4 --seed 1", "plan --seed 1 --dtype bf16,int4"),
        ("plan --workload W --ttft-ms 200 --percentile=95", "plan --load W --limit ttft=200 --limit p=95"),
        ("plan --expert-parallel --max-gpus 4", "plan --layout tp8ep8 --limit devices=4"),
        ("plan --context 96 --backend ray", "plan --prompt-tokens 96 --jobs ray"),
        ("plan --backend dask --jobs 8 --seed 1", "plan --seed 1 --jobs dask:8"),
        ("simulate --workload W --max-running=16", "simulate --load W --set max_running=16"),
        ("serve --plan P --drain-s 3", "serve --plan P --set drain_s=3"),
        ("trace --limit 3", "trace --num-prompts 3"),
        ("kinds --target T --clients 8 --seed 2", "plan --target T --load closed:8, --seed 2"),
        ("kinds --target T --clients=1,2", "plan --target T --load closed:1,2,"),
        ("kinds --target T --quant fp8", "plan --target T --dtype fp8 --load closed:1,4,16,64"),
        ("report --plan P --out R", "plan --plan P --report R"),
        ("compare --target T --out P", "plan --target T --out P"),
        ("rates --vllm-metrics M --out A", "import --from M --out A"),
        ("secret --out S", "run --new-secret S"),
        ("models --json -", "list models --json -"),
        ("export --max-running 4", "export --max-running 4"),
        ("plan --quant", "plan --dtype"),
        ("plan --role decode --seed 1", "plan --seed 1 --set transfer_ms=0"),
        ("plan --role decode --transfer-ms 5", "plan --set transfer_ms=5"),
        ("plan --role all --ranks 2", "plan --set ranks=2"),
        ("simulate --control slo --full", "simulate --set control=slo --set replay=false"),
        ("workload --turns 5 --rate=2", "workload --set turns=5 --set rate=2"),
        ("import --kind head --no-thinking", "import --set kind=head --set thinking=false"),
    ],
)
def test_old_words_become_new_ones(before: str, after: str) -> None:
    assert renewed(before.split()) == after.split()


def test_a_verb_that_is_two_commands_now_says_both() -> None:
    with pytest.raises(ValueError, match=r"plan --out plan\.json.*validate --plan plan\.json --prompts FILE"):
        renewed(["compare", "--target", "t", "--run"])


def test_an_old_verb_says_its_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    assert "swiftspec: `swiftspec devices` is now `swiftspec list devices`" in capsys.readouterr().err
