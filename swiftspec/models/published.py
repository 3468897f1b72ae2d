"""Models by name: shapes from their config.json, for planning without the files.

`published.json` holds everything that sizes and costs depend on (nothing of rotary embeddings or norms' eps), the
repository of the shape and others of the same one, its number of parameters, and the vocabulary: drafts need their
target's. The same of models that can be planned for, but not run, with the rounded number of parameters on their cards,
is `published_sparse.json`; a model whose only checkpoint is quantised has its format there.
"""

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from swiftspec.errors import FieldError
from swiftspec.models.checkpoint_format import stored_weights
from swiftspec.models.heads import Product
from swiftspec.models.names import out_of_scope, resolve, unknown
from swiftspec.models.sparse_config import spec_from_config
from swiftspec.models.spec import ModelSpec

NOT_LISTED = (
    "`swiftspec list models` lists those that are known by name; another model can be given as a directory with its "
    "config.json"
)
_TABLES = tuple(Path(__file__).with_name(name) for name in ("published.json", "published_sparse.json"))
# Vocabularies whose sizes differ by no more are taken as the same one with different padding, as Qwen2's of 151,936 and
# 152,064 tokens.
MOST_PADDING = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model of the table.

    source: its repository on the Hugging Face hub. products: of its forwards, beside those of its layers: none.
    """

    name: str
    spec: ModelSpec
    vocabulary: str
    source: str
    products: tuple[Product, ...] = ()


class Named(Protocol):
    """A model by its name, here or elsewhere. vocabulary: None if it is not of the table."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def vocabulary(self) -> str | None: ...

    @property
    def products(self) -> tuple[Product, ...]: ...


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for path in _TABLES:
        table |= json.loads(path.read_text(encoding="utf-8"))
    return table


def model_names() -> list[str]:
    """Every name in the table."""
    return list(_table())


def registered_name(name: str, *, field: str = "model") -> str | None:
    """The table's name for an informal model name or a repository; None if it is not in the table.

    ValueError: if several names match, or the name shows that such models are out of scope.
    """
    spellings = {known: (entry["source"], *entry.get("same_shape", ())) for known, entry in _table().items()}
    found = resolve(field, name, spellings)
    if found is None and (reason := out_of_scope(name)) is not None:
        raise FieldError(field, repr(name), f"that {reason}")
    return found


@cache
def known_model(name: str) -> NamedModel:
    """The model of this name. ValueError with the closest names if there is none."""
    if name not in _table():
        raise unknown("model", name, _table(), otherwise=NOT_LISTED, same_numbers=True)
    entry = _table()[name]
    spec = spec_from_config(entry["config"], source=name)
    if "quantization_config" in entry["config"]:
        spec = dataclasses.replace(spec, stored=stored_weights(Path(name), entry["config"], spec))
    return NamedModel(name=name, spec=spec, vocabulary=entry["vocabulary"], source=entry["source"])


def likely_vocabulary(spec: ModelSpec) -> str | None:
    """The table's most likely vocabulary of a model with this architecture, by its size; None if none fits."""
    return next(
        (
            known.vocabulary
            for known in map(known_model, model_names())
            if known.spec.architecture == spec.architecture
            and abs(known.spec.vocab_size - spec.vocab_size) <= MOST_PADDING
        ),
        None,
    )
