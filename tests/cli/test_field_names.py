import pytest

from swiftspec.cli.field_names import in_flags


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("num_devices is 99; expected 1 to 16", "--devices is 99; expected 1 to 16"),
        ("quant is 'x'; expected one of bf16", "--dtype is 'x'; expected one of bf16"),
        ("host_s is inf; expected a finite number", "--set host_ms is inf; expected a finite number"),
        ("prompt a has 9 tokens; with max_new_tokens 8 that", "prompt a has 9 tokens; with --max-new-tokens 8 that"),
        ("dataset is GSM8K; with trace acceptance is known", "--dataset is GSM8K; with --trace acceptance is known"),
        ("target is placed on devices [0]", "target is placed on devices [0]"),
        ("plan.json: device is 'x'; expected cpu", "plan.json: device is 'x'; expected cpu"),
        ("the target says nothing", "the target says nothing"),
        ("num_requests is 0; expected 1 to 9", "--requests is 0; expected 1 to 9"),
        ("num_samples is 16; question 0 has 4", "--samples is 16; question 0 has 4"),
        ("end_marker is '('; expected a regular expression", "--end-marker is '('; expected a regular expression"),
        ("prompt_tokens is missing; expected lengths", "--prompt-tokens is missing; expected lengths"),
        ("w.json: output_tokens is 3; input", "w.json: output_tokens is 3; input"),
        ("w.json: requests[3].output_tokens is 0; input", "w.json: requests[3].output_tokens is 0; input"),
        ("w.json: output_tokens.mean is 0; input", "w.json: output_tokens.mean is 0; input"),
    ],
)
def test_fields_are_named_as_flags_where_they_are_meant(sentence: str, expected: str) -> None:
    assert in_flags(sentence) == expected
