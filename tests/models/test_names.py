"""Model names in the spellings that people use."""

import pytest

from swiftspec.devices import registered_device
from swiftspec.models.names import unknown
from swiftspec.models.published import known_model, model_names, registered_name
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.policies.effects import Role


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("Llama-3-70B", "llama-3-70b"),
        ("llama3-70b", "llama-3-70b"),
        ("Llama-3.3-70B", "llama-3.3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Qwen/Qwen2.5-72B-Instruct", "qwen2.5-72b"),
        ("Qwen3-0.6B", "qwen3-0.6b"),
        ("DeepSeek-R1-Distill-Llama-70B", "r1-distill-llama-70b"),
        ("deepseek-ai/deepseek-coder-33b-instruct", "deepseek-coder-33b"),
        ("meta-llama/Llama-3.1-405B-Instruct", "llama-3.1-405b"),
        ("Llama-4-Scout-17B-16E", "llama-4-scout"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama-4-maverick"),
        ("google/gemma-2-27b-it", "gemma-2-27b"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
    ],
)
def test_a_model_is_known_as_people_write_it(written: str, taken: str) -> None:
    assert registered_name(written) == taken


@pytest.mark.parametrize("name", model_names())
def test_a_models_own_name_is_its_own(name: str) -> None:
    assert registered_name(name) == registered_name(name.upper()) == name


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("h100", "h100-sxm"),
        ("H100", "h100-sxm"),
        ("a100", "a100-sxm"),
        ("H200", "h200-sxm"),
        ("NVIDIA L40S", "l40s"),
        ("GB300", "gb300"),
        ("H20-3e", "h20-141gb"),
        ("A100-PCIe", "a100-pcie-80gb"),
        ("A100-40GB", "a100-sxm-40gb"),
        ("NVIDIA A10G", "a10g"),
        ("RTX5090", "rtx-5090"),
        ("MI300X", "mi300x"),
    ],
)
def test_a_device_is_known_as_people_write_it(written: str, taken: str) -> None:
    assert registered_device(written) == taken


@pytest.mark.parametrize("written", ["l40", "h2", "a10", "h100-pci", "b100", "H100 94 GB (LRZ)", "", "-"])
def test_another_device_is_not_taken_for_one_of_the_table(written: str) -> None:
    with pytest.raises(ValueError, match="device is "):
        registered_device(written)


@pytest.mark.parametrize("written", ["a10", "l40", "a800", "rtx-3090", "mi325x", "h100-pcie-94gb", "b100", "rtx-4080"])
def test_a_hint_never_names_a_device_of_another_number(written: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{written}'; expected one of h100-sxm, "):
        registered_device(written)


@pytest.mark.parametrize("written", ["V100", "Tesla T4", "v100-sxm2-32gb"])
def test_a_device_without_bf16_is_refused_by_what_it_lacks(written: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{written}'; it has no bf16, which every plan needs"):
        registered_device(written)


@pytest.mark.parametrize("written", ["llama-3.1-400b", "qwen3-9b", "gemma-2-7b", "phi-5"])
def test_a_hint_never_names_a_model_of_another_size(written: str) -> None:
    with pytest.raises(ValueError, match="a directory with its config"):
        PlannedModel.of(Role.TARGET, written)


@pytest.mark.parametrize(
    ("written", "choices"),
    [
        ("llama-70b", "llama-2-70b, llama-3-70b, llama-3.1-70b or llama-3.3-70b"),
        ("llama-3.2", "llama-3.2-1b or llama-3.2-3b"),
        ("Qwen/Qwen2", "qwen2-0.5b, qwen2-1.5b, qwen2-7b or qwen2-72b"),
        ("qwen", "any of 24, such as qwen2-0.5b or qwen2-1.5b"),
        ("qwen-32b", "qwen2.5-32b or qwen3-32b"),
    ],
)
def test_an_ambiguous_name_is_refused_with_the_choices(written: str, choices: str) -> None:
    with pytest.raises(ValueError, match="which may be ") as raised:
        registered_name(written, field="--target")
    assert str(raised.value) == f"--target is {written!r}, which may be {choices}; name one of them"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("deepseek-v2-coder", "mixture of experts that is not known by name; give a directory"),
        ("Qwen/Qwen1.5-MoE-A2.7B", "mixture of experts"),
        ("Llama-4-Behemoth", "mixture of experts"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "a head of a kind that is not supported"),
        ("medusa", "a head of a kind that is not supported"),
        ("DeepSeek-V4-Pro", "an architecture that is not supported"),
        ("falcon-40b", "an architecture that is not supported"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "has Mamba layers, which cannot be planned"),
        ("ibm-granite/granite-4.0-h-small", "has Mamba layers"),
        ("google/gemma-4-E4B-it", "has embeddings of every layer"),
    ],
)
def test_a_model_out_of_scope_says_why(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        registered_name(name, field="--draft")
    assert str(raised.value).startswith(f"--draft is {name!r}; that ")


@pytest.mark.parametrize(
    "name", ["mistral-large", "Qwen/Qwen1.5-72B", "llama-3-8", "llama-400b", "codellama-70b-python", "yi-6b"]
)
def test_another_model_is_not_taken_for_one_of_the_table(name: str) -> None:
    assert registered_name(name) is None


def test_an_error_does_not_list_dozens_of_names() -> None:
    with pytest.raises(ValueError, match="model is 'zzz'") as raised:
        known_model("zzz")
    assert str(raised.value) == (
        "model is 'zzz'; `swiftspec list models` lists those that are known by name; another model can be "
        "given as a directory with its config.json"
    )
    assert str(unknown("--quant", "zzz", ("bf16", "fp8"))) == "--quant is 'zzz'; expected one of bf16, fp8"
