"""The class that vLLM makes for `"method": "custom_class"`, and calls after every step.

    --speculative-config '{"method": "custom_class", "model": "swiftspec.drafter.Drafter", "num_speculative_tokens": 6}'
    --additional-config '{"swiftspec": {"address": "ipc:///tmp/draft"}}'

The interface is vLLM's own and experimental (vllm/v1/spec_decode/custom_class_proposer.py); tried with 0.32.0.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import finalize

from swiftspec.drafter.known_texts import Row, Tokens
from swiftspec.drafter.session import Session
from swiftspec.engine.channel.curve import Curve, read_secret
from swiftspec.engine.channel.zmq_channel import Channel
from swiftspec.models.tokenizer import vocabulary_digest

_SETTINGS = {"address", "secret_file", "limit_ms"}
_log = logging.getLogger("vllm.swiftspec")


class Drafter:
    """Draft tokens for vLLM's requests, from a draft server.

    config: vLLM's; `additional_config` has under `swiftspec` the server's `address`, and if wanted a `secret_file`, and
    `limit_ms`, the longest that a step waits for drafts.

    ValueError: if these are wrong. Whatever happens later costs speed, never output.
    """

    def __init__(self, config: Any) -> None:
        self._session: Session | None = None
        parallel = config.parallel_config
        if parallel.rank % parallel.tensor_parallel_size:
            return  # the scheduler asks the first rank only
        settings = _settings(config.additional_config)
        secret = settings.get("secret_file")
        vocab_size = config.model_config.get_vocab_size()
        limit_ms = settings.get("limit_ms")
        curve = Curve.derived(read_secret(Path(secret))) if secret else None
        held = ExitStack()
        channel = held.enter_context(
            Channel(settings["address"], bind=False, leads=True, vocab_size=vocab_size, curve=curve)
        )
        finalize(self, held.close)  # vLLM closes nothing, and a socket that is open holds up the end of its process
        self._session = Session(
            channel,
            address=settings["address"],
            num_draft_tokens=config.speculative_config.num_speculative_tokens,
            max_context=config.model_config.max_model_len,
            vocab_size=vocab_size,
            vocabulary=vocabulary_digest(Path(config.model_config.tokenizer)),
            limit_s=None if limit_ms is None else 1e-3 * limit_ms,
        )

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Sequence[Tokens],
        **_: object,
    ) -> list[list[int]]:
        """Draft tokens of every row; an empty list for one that decodes plainly.

        sampled_token_ids: of the last step, by row; none while a prompt is read. num_tokens_no_spec: of each text.
        """
        if self._session is not None:
            rows = [
                Row(token_ids_cpu[index], int(num_tokens_no_spec[index]), sampled)
                for index, sampled in enumerate(sampled_token_ids)
            ]
            try:
                return [list(draft) for draft in self._session.propose(rows)]
            except Exception:  # noqa: BLE001 - whatever it is, the engine decodes without drafts
                _log.exception("drafting has failed; decoding goes on without drafts")
                self._session = None
        return [[] for _ in sampled_token_ids]

    def load_model(self, *_: object, **__: object) -> None:
        """Nothing: the draft's weights are the server's."""


def _settings(additional: Any) -> Mapping[str, Any]:
    """Our part of vLLM's additional configuration. ValueError names what is wrong in it."""
    settings = additional.get("swiftspec") if isinstance(additional, Mapping) else None
    if not isinstance(settings, Mapping):
        raise ValueError('--additional-config has no "swiftspec"; expected {"swiftspec": {"address": "ipc://FILE"}}')
    if unknown := sorted(settings.keys() - _SETTINGS):
        raise ValueError(f"--additional-config swiftspec.{unknown[0]} is unknown; expected {', '.join(_SETTINGS)}")
    address, limit_ms = settings.get("address"), settings.get("limit_ms")
    if not isinstance(address, str):
        raise ValueError(
            f"--additional-config swiftspec.address is {address!r}; expected ipc://FILE or tcp://HOST:PORT"
        )
    if limit_ms is not None and not (isinstance(limit_ms, int | float) and limit_ms > 0):
        raise ValueError(f"--additional-config swiftspec.limit_ms is {limit_ms!r}; expected a positive number")
    return settings
