"""Numbers of parameters and sizes of weights, from real configuration files, against published ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.spec import ModelSpec, weight_bytes

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "published_weights.json").read_text())["rows"]
FIELDS = ("parameters", "bytes")


def expanded(value: Any) -> Any:
    """A field as the file has it: every layer's name, every layer's kind."""
    if isinstance(value, dict) and value.keys() == {"repeat", "times"}:
        return value["repeat"] * value["times"]
    if isinstance(value, dict):
        return {key: expanded(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    names: list[Any] = []
    for item in value:
        found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", item) if isinstance(item, str) else None
        last = int(found[3]) + 1 if found else 0
        names += [f"{found[1]}{layer}{found[4]}" for layer in range(int(found[2]), last)] if found else [item]
    return names


def counted(spec: ModelSpec, quantisation: str, field: str, mtp: dict[str, int]) -> int:
    """Parameters or bytes of the model, and of the MTP layers that the published number has."""
    layer, copies = spec.one_layer(), mtp.get("embeddings", 0) * spec.vocab_size * spec.hidden_size
    ends = layer.vocab_size * layer.hidden_size * (1 if layer.tie_word_embeddings else 2)
    beside = 2 * spec.hidden_size**2 + copies  # the product of hidden state and embedding
    layers = mtp.get("layers", 0)
    if field == "parameters":
        return spec.num_parameters + layers * (layer.num_parameters - ends + beside)
    own = "bf16" if mtp.get("bf16") else quantisation
    return weight_bytes(spec, quantisation) + layers * (weight_bytes(layer, own) + (beside - ends) * BF16_BYTES)


def test_sixty_files_have_a_published_number() -> None:
    assert len({(row["file"], row["repository"]) for row in ROWS}) >= 60
    assert sum("bytes" in row for row in ROWS) >= 12


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['repository']}-{next(f for f in FIELDS if f in row)}")
def test_weights_are_those_that_are_published(row: dict[str, Any], tmp_path: Path) -> None:
    for file, key in (("config.json", "config"), ("hf_quant_config.json", "hf_quant_config")):
        if key in row:
            (tmp_path / file).write_text(json.dumps(expanded(row[key])))
    spec = read_spec(tmp_path)
    assert spec.stored is None or not spec.stored.objection
    quantisation = spec.stored.name if spec.stored else "bf16"
    field = next(field for field in FIELDS if field in row)
    assert counted(spec, quantisation, field, row.get("mtp", {})) == pytest.approx(row[field], rel=0.01)
