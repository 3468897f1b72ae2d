"""Names of the engines whose forwards a device profile can be composed of."""

__all__ = ["ENGINES", "INT4_ENGINES", "SERVING_ENGINES"]

ENGINES = ("auto", "swiftspec", "vllm-int4", "vllm", "sglang", "trtllm")
SERVING_ENGINES = ("vllm", "sglang", "trtllm")  # of `ENGINES`, those with known op tables and host time
INT4_ENGINES = ("swiftspec", "vllm-int4")  # and those with published whole forwards in int4
