"""Facts about models and devices that need not be at hand: what a plan for another machine starts from."""

from swiftspec.registry.devices import DEVICES, ClusterSpec, DeviceSpec, named_device, registered_device
from swiftspec.registry.models import (
    MOST_PADDING,
    NOT_LISTED,
    NamedModel,
    known_model,
    likely_vocabulary,
    model_names,
    registered_name,
)
from swiftspec.registry.sharding import Shard, shard_of, sharded
from swiftspec.registry.weights import QUANTISATIONS, Quantisation, weight_bytes

__all__ = [
    "DEVICES",
    "MOST_PADDING",
    "NOT_LISTED",
    "QUANTISATIONS",
    "ClusterSpec",
    "DeviceSpec",
    "NamedModel",
    "Quantisation",
    "Shard",
    "known_model",
    "likely_vocabulary",
    "model_names",
    "named_device",
    "registered_device",
    "registered_name",
    "shard_of",
    "sharded",
    "weight_bytes",
]
