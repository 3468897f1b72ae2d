"""Names of engines whose forwards a device profile can be composed of."""

__all__ = ["ENGINES", "INT4_ENGINES", "SERVING_ENGINES"]

ENGINES = ("auto", "swiftspec", "vllm-int4", "vllm", "sglang", "trtllm")
SERVING_ENGINES = ("vllm", "sglang", "trtllm")  # of `ENGINES`, those whose op tables and host time are known
INT4_ENGINES = ("swiftspec", "vllm-int4")  # and those of which whole forwards in int4 are published
