"""Drafter for vLLM whose draft runs in a server of its own, `swiftspec serve --role draft`, on devices of its own."""

from swiftspec.drafter.vllm import Drafter

__all__ = ["Drafter"]
