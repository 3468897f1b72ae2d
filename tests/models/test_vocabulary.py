"""Vocabularies without the library that tokenises, beside that library's own."""

from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.tokenizer import check_same_vocabulary, read_vocabulary
from tests.cli.tokenizer_files import write_byte_tokenizer

IDS = {"<unk>": 0, "a": 1, "ab": 2, "\u20ac": 3}
MODELS: dict[str, dict[str, Any]] = {
    "BPE": {"vocab": IDS, "merges": []},
    "WordPiece": {"vocab": IDS, "unk_token": "<unk>"},
    "WordLevel": {"vocab": IDS, "unk_token": "<unk>"},
    "Unigram": {"vocab": [(token, -1.0) for token in IDS], "unk_id": 0},
}


@pytest.mark.parametrize("kind", MODELS)
def test_vocabulary_is_that_of_the_library_that_tokenises(tmp_path: Path, kind: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(getattr(tokenizers.models, kind)(**MODELS[kind]))
    tokenizer.add_special_tokens(["<unk>", "<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_vocabulary(tmp_path) == tokenizer.get_vocab(with_added_tokens=True) == IDS | {"<|end|>": 4}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", r"model\.vocab is missing"),
        ('{"model": {"vocab": 3}}', r"model\.vocab is missing"),
        ('{"model": {"vocab": {"a": "b"}}}', "id of token 'a' is 'b'"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "b"}]}', "id of token 'b' is None"),
    ],
)
def test_a_file_without_tokens_or_ids_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=rf"tokenizer\.json: not a tokenizer \({reason}\)"):
        read_vocabulary(tmp_path)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        read_vocabulary(tmp_path)


def test_same_vocabulary_passes(tmp_path: Path) -> None:
    target, draft = write_byte_tokenizer(tmp_path / "target"), write_byte_tokenizer(tmp_path / "draft")
    check_same_vocabulary(target, draft)


def test_different_vocabularies_name_a_token_and_both_directories(tmp_path: Path) -> None:
    target = write_byte_tokenizer(tmp_path / "target", merges=[("a", "b"), ("c", "d")])
    draft = write_byte_tokenizer(tmp_path / "draft", merges=[("c", "d")])
    with pytest.raises(ValueError, match=r"draft .*/draft and target .*/target .* token 'ab' is missing .* 257 in the"):
        check_same_vocabulary(target, draft)
