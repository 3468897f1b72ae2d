import pytest

from swiftspec.models import known_model
from swiftspec.models.heads import HEADS, Product
from swiftspec.policies import DraftKind

TARGET = known_model("llama-3.3-70b").spec


@pytest.mark.parametrize(
    ("name", "kind", "num_layers", "vocab_size"),
    [
        ("eagle3", DraftKind.HEAD, 1, 32000),
        ("mtp", DraftKind.HEAD, 1, TARGET.vocab_size),
        ("p-eagle", DraftKind.BLOCK, 4, TARGET.vocab_size),
        ("dflash", DraftKind.BLOCK, 5, TARGET.vocab_size),
        ("dspark", DraftKind.BLOCK, 5, TARGET.vocab_size),
    ],
)
def test_a_head_is_as_wide_as_its_target(name: str, kind: DraftKind, num_layers: int, vocab_size: int) -> None:
    head = HEADS[name]
    spec = head.spec(TARGET)
    assert (head.kind, spec.num_layers, spec.vocab_size) == (kind, num_layers, vocab_size)
    assert (spec.hidden_size, spec.kv_size) == (TARGET.hidden_size, TARGET.kv_size)


def test_products_of_a_head_beside_its_layers() -> None:
    hidden = TARGET.hidden_size
    assert list(HEADS["eagle3"].products(TARGET)) == [
        Product("features", hidden, 3 * hidden),
        Product("qkv of embeddings", hidden + 2 * 1024, hidden),
    ]
    assert list(HEADS["dspark"].products(TARGET))[-1] == Product("markov", TARGET.vocab_size, 256, is_serial=True)
