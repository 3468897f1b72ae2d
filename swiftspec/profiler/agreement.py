"""The GPU's decoder against the CPU's on the bundled pair: logits of whole forwards, and what policies say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from swiftspec.engine.cached import AnyDecoder, CachedDecoder
from swiftspec.engine.devices import TREE_SLOTS
from swiftspec.engine.driver import Driver
from swiftspec.engine.model import Decoder
from swiftspec.engine.ops import Ops
from swiftspec.engine.sampling import Sampler
from swiftspec.engine.static import StaticDecoder
from swiftspec.engine.weights import FORMATS
from swiftspec.policies import POLICIES, Layout, Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.specs import model_directory

__all__ = ["decoder_records", "greedy_records"]

Record = dict[str, Any]

_PREFIX = 100
_CAPACITY = 512


def decoder_records(
    device: torch.device | str, *, model: str, dtypes: Sequence[str], rows: Sequence[int], ops: Ops | None = None
) -> Iterator[Record]:
    """|logits - CPU's in fp32| / |CPU's| of a tree forward after a prefix, for each dtype and number of rows.

    ops: the device's own if not given.
    """
    directory = model_directory(model)
    exact: AnyDecoder = Decoder.load(directory)
    prompt = np.random.default_rng(0).integers(1, exact.spec.vocab_size, _PREFIX + max(rows)).tolist()
    for dtype in dtypes:
        static: AnyDecoder = StaticDecoder.load(directory, weight_format=FORMATS[dtype], device=device, ops=ops)
        for num_rows in rows:
            # A star of chains of two: rows see the first row, and some see the one before.
            ancestors = [0, *((1 if row % 2 else 1 | 1 << (row - 1)) for row in range(1, num_rows))]
            positions = [_PREFIX + bin(seen).count("1") for seen in ancestors]
            rows_of_tree = prompt[_PREFIX : _PREFIX + num_rows], positions, ancestors
            logits = []
            for decoder in (static, exact):
                cache = decoder.new_cache(_CAPACITY)
                decoder.prefill(prompt[:_PREFIX], cache)
                logits.append(decoder.forward(*rows_of_tree, cache).double().cpu())
            error = float((logits[0] - logits[1]).norm() / logits[1].norm())
            same = int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
            yield {
                "kind": "decoder",
                "shape": f"{model}, {num_rows} rows",
                "dtype": dtype,
                "logits_error": error,
                "same_first_choice": same,
            }


def greedy_records(
    device: torch.device | str, *, dtypes: Sequence[str], num_prompts: int, max_new_tokens: int, ops: Ops | None = None
) -> Iterator[Record]:
    """For each policy of one process: how many of its outputs differ from the CPU's own, which are the target's."""
    directories = {Role.TARGET: model_directory("demo/target"), Role.DRAFT: model_directory("demo/draft")}
    vocab_size = Decoder.load(directories[Role.TARGET]).spec.vocab_size
    tokens = np.random.default_rng(0).integers(1, vocab_size, (num_prompts, 32)).tolist()
    requests = [Request(prompt=tuple(prompt), max_new_tokens=max_new_tokens) for prompt in tokens]
    cpu: dict[Role, AnyDecoder] = {role: Decoder.load(directory) for role, directory in directories.items()}
    alone = make_policy("autoregressive")
    expected = [_output(alone, request, cpu) for request in requests]
    for dtype in dtypes:
        decoders: dict[Role, AnyDecoder] = {
            role: StaticDecoder.load(directory, weight_format=FORMATS[dtype], device=device, ops=ops)
            for role, directory in directories.items()
        }
        for policy in _policies_of_one_process():
            outputs = [_output(policy, request, decoders) for request in requests]
            differing = sum(output != own for output, own in zip(outputs, expected, strict=True))
            yield {
                "kind": "greedy",
                "policy": policy.name,
                "dtype": dtype,
                "prompts": num_prompts,
                "tokens": sum(map(len, expected)),
                "differing_outputs": differing,
            }


def _policies_of_one_process() -> Iterator[Policy]:
    for policy in map(make_policy, POLICIES):
        fits = max(policy.draft_rows, policy.target_rows) <= TREE_SLOTS["cuda"]
        if policy.layout is not Layout.DISAGGREGATED and fits:
            yield policy


def _output(policy: Policy, request: Request, decoders: Mapping[Role, AnyDecoder]) -> list[int]:
    tokens: list[int] = []
    driver = Driver(
        role=Role.TARGET,
        models={role: CachedDecoder(decoder, decoder.new_cache(_CAPACITY)) for role, decoder in decoders.items()},
        channels=(),
        commit=tokens.extend,
        interrupted=lambda: False,
        sampler=Sampler(),
    )
    driver.run(policy.programs(request)[Role.TARGET])
    return tokens
