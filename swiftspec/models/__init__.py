"""Models: shapes by name or from config.json, their sharding, and the size of their weights."""

from swiftspec.models.published import known_model

__all__ = ["known_model"]
