"""A model directory's tokenizer.json: text to token ids and back, whole or as a stream. No torch, no transformers."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as FileTokenizer

from swiftspec.files.reading import brief, read_input

__all__ = ["TextStream", "Tokenizer", "check_same_vocabulary", "surely_over"]

_FILE = "tokenizer.json"
_MOST_BYTES = 64 << 20  # the largest in use have half of that
_TOKEN_CHARACTERS = 6  # of a token, about; more than in most texts
_MARGIN = 64
_INCOMPLETE = "\ufffd"  # what decoding makes of bytes that are no whole character yet


class Tokenizer:
    """The tokenizer of a Hugging Face model directory. ValueError if tokenizer.json is missing or corrupt."""

    def __init__(self, directory: Path) -> None:
        path = directory / _FILE
        if not path.is_file():
            raise ValueError(f"{directory}: {_FILE} is missing")
        content = read_input(path, most_bytes=_MOST_BYTES)
        try:
            self._tokenizer = FileTokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises bare Exception for whatever does not parse
            raise ValueError(f"{path}: not a tokenizer ({brief(error)})") from error

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token id by token, added tokens included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def encode(self, text: str, *, most: int | None = None) -> tuple[int, ...]:
        """Token ids, with the special tokens that the model expects around a text.

        Parameters
        ----------
        most : int, optional
            More tokens than this are of no use to the caller. Of a text that has more, perhaps only the beginning is
            looked at: the result is then incomplete, and longer than `surely_over(most)`. A token takes some 200
            bytes here, so that a long text would take gigabytes before it is refused.
        """
        if most is not None:
            length = _TOKEN_CHARACTERS * most + _MARGIN
            while length < len(text):
                tokens = self._ids(text[:length])
                if len(tokens) > surely_over(most):
                    return tuple(tokens)
                length *= 2
        return tuple(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        """As `encode` of the tokenizers library, which would keep all other threads waiting; this one does not."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text])[0].ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def stream(self) -> "TextStream":
        """A decoder for tokens that arrive bit by bit."""
        return TextStream(self)


def surely_over(most: int) -> int:
    """Tokens in the beginning of a text from which it follows that the whole text has more than `most`.

    The last tokens of a text that was cut off may be others than in the whole.
    """
    return most + most // 8 + _MARGIN


class TextStream:
    """Text of a growing token sequence; what it gives out adds up to the decoded whole.

    A character may be spread over several byte-level tokens, and how a token is written may depend on the one before
    it. So the text since the last boundary is decoded with and without the new tokens, and the difference given out
    once it ends in a whole character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0  # decoding starts here
        self._given = 0  # tokens before this one have been given out

    def push(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        self._tokens += tokens
        before, after = self._texts()
        if len(after) <= len(before) or after.endswith(_INCOMPLETE):
            return ""
        self._start, self._given = self._given, len(self._tokens)
        return after[len(before) :]

    def flush(self) -> str:
        """The rest, whether or not it ends in a whole character."""
        before, after = self._texts()
        self._start = self._given = len(self._tokens)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        given, everything = self._tokens[self._start : self._given], self._tokens[self._start :]
        return self._tokenizer.decode(given), self._tokenizer.decode(everything)


def check_same_vocabulary(target: Path, draft: Path) -> None:
    """ValueError unless both model directories give every token the same id: only ids travel between the roles."""
    ours, theirs = Tokenizer(target).vocabulary, Tokenizer(draft).vocabulary
    if ours == theirs:
        return
    token = min((ours.items() ^ theirs.items()), key=lambda item: (item[1], item[0]))[0]
    raise ValueError(
        f"draft {draft} and target {target} have different vocabularies: "
        f"token {token!r} is {theirs.get(token, 'missing')} in the draft and {ours.get(token, 'missing')} in the target"
    )
