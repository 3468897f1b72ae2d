"""Servers of other engines (vLLM, llama.cpp) as processes: started, watched, ended with all that they started."""

from swiftspec.external.server import RunningServer, ServerCommand, ServerError, started
from swiftspec.machine import free_port

__all__ = ["RunningServer", "ServerCommand", "ServerError", "free_port", "started"]
