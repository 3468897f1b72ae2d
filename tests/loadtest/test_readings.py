"""Readings of servers' metrics."""

import pytest

from swiftspec.loadtest.readings import Reading

VLLM = """
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompts}
vllm:prompt_tokens_total{{engine="1",model_name="m"}} 5.0
vllm:prompt_tokens_created{{engine="0",model_name="m"}} 1.7e9
vllm:request_prefill_time_seconds_sum{{engine="0",model_name="m"}} {seconds}
vllm:request_prefill_time_seconds_count{{engine="0",model_name="m"}} {requests}
vllm:request_prefill_time_seconds_bucket{{engine="0",model_name="m",le="0.3"}} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} 3.0
vllm:cache_config_info{{block_size="128",num_gpu_blocks="170",enable_prefix_caching="True",engine="0"}} 1.0
"""


def reading(*, prompts: float, seconds: float, requests: float, first: float) -> Reading:
    return Reading.parse(VLLM.format(prompts=prompts, seconds=seconds, requests=requests, first=first), "metrics.txt")


def test_engines_of_a_server_are_added() -> None:
    found = reading(prompts=10.0, seconds=1.5, requests=3.0, first=6.0)
    assert found.engine == "vllm"
    assert found.count("prompt_tokens") == 15.0
    assert found.mean("request_prefill_time_seconds") == 0.5
    assert found.by_position == (6.0, 3.0)
    assert found.cache_tokens == 170 * 128
    assert found.block_tokens == 128


def test_the_difference_of_two_readings_is_what_came_between() -> None:
    later = reading(prompts=110.0, seconds=2.5, requests=5.0, first=8.0)
    between = later.since(reading(prompts=10.0, seconds=1.5, requests=3.0, first=6.0))
    assert between.count("prompt_tokens") == 100.0
    assert between.mean("request_prefill_time_seconds") == 0.5
    assert between.by_position == (2.0, 0.0)
    assert between.mean("e2e_request_latency_seconds") is None


def test_a_cache_without_prefixes_has_no_blocks() -> None:
    text = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False"} 1.0'
    assert Reading.parse(text, "metrics.txt").block_tokens == 0


def test_metrics_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match=r"metrics\.txt: no metric of a server that is known here"):
        Reading.parse("process_open_fds 34.0\n", "metrics.txt")
    with pytest.raises(ValueError, match="no sample"):
        Reading.parse("<html>", "metrics.txt")
