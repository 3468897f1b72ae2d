"""Load tests: a workload sent over HTTP to a server of OpenAI's API, this project's or another. No engine, no torch."""

from swiftspec.loadtest.client import ServerClient
from swiftspec.loadtest.sending import SentLoad, drawn_prompts, encoded_prompts, send_workload

__all__ = ["SentLoad", "ServerClient", "drawn_prompts", "encoded_prompts", "send_workload"]
