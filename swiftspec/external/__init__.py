"""Servers of other engines (vLLM, llama.cpp) as processes: started, watched, ended with all that they started."""

from swiftspec.external.server import RunningServer, ServerCommand, ServerError, started

__all__ = ["RunningServer", "ServerCommand", "ServerError", "started"]
