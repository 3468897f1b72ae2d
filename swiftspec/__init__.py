"""Plan, run and validate low-latency LLM decoding. Stays light: importing this loads neither torch nor transformers."""

__all__ = ["__version__"]

__version__ = "0.1.0"
