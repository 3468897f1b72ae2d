"""Models: shapes by name or from config.json, their sharding, and the size of their weights."""

from swiftspec.models.published import (
    MOST_PADDING,
    NOT_LISTED,
    NamedModel,
    known_model,
    likely_vocabulary,
    model_names,
    registered_name,
)
from swiftspec.models.quantisation import QUANTISATIONS, Quantisation
from swiftspec.models.sharding import Shard, shard_of, sharded
from swiftspec.models.spec import weight_bytes

__all__ = [
    "MOST_PADDING",
    "NOT_LISTED",
    "QUANTISATIONS",
    "NamedModel",
    "Quantisation",
    "Shard",
    "known_model",
    "likely_vocabulary",
    "model_names",
    "registered_name",
    "shard_of",
    "sharded",
    "weight_bytes",
]
