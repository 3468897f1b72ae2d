"""Cache of prompts' beginnings that requests share: what is matched, and what gives way. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

Segment = tuple[Hashable, int]  # a stretch of a prompt that others may have, and its tokens


@dataclass(kw_only=True)
class PrefixCache:
    """Whole blocks of earlier texts, the least recently used of which give way first.

    block_tokens: only whole blocks are shared; 0: nothing is. gives_up: blocks that a drafting method gives up of what
    is matched, since its own layers have to see the text.
    """

    block_tokens: int
    gives_up: int = 0
    queried_tokens: int = 0
    matched_tokens: int = 0
    num_tokens: int = 0
    _kept: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)
    _users: Counter[Hashable] = field(default_factory=Counter)

    def matched(self, segments: Sequence[Segment], prompt_tokens: int) -> int:
        """Tokens of a prompt that need not be computed: whole blocks, never its last token."""
        self.queried_tokens += prompt_tokens
        found = 0
        for key, tokens in segments:
            kept = min(self._kept.get(key, 0), tokens)
            found += kept
            if kept < tokens:
                break
        blocks = min(found, prompt_tokens - 1) // self.block_tokens - self.gives_up if self.block_tokens else 0
        tokens = max(0, blocks) * self.block_tokens
        self.matched_tokens += tokens
        return tokens

    def hold(self, segments: Sequence[Segment]) -> int:
        """Keep a prompt's stretches at least until they are released. Tokens that are shared from now on."""
        if not self.block_tokens:
            return 0
        for key, tokens in segments:
            kept = self._kept.get(key, 0)
            self._kept[key] = max(tokens, kept)
            self._kept.move_to_end(key)
            self.num_tokens += self._kept[key] - kept
            self._users[key] += 1
        return sum(tokens for _, tokens in segments)

    def release(self, segments: Sequence[Segment]) -> None:
        """A request has ended: its stretches may give way when nobody else has them."""
        if self.block_tokens:
            self._users.subtract(key for key, _ in segments)

    def present(self, segments: Sequence[Segment]) -> int:
        """Tokens of a prompt's stretches that take no further room."""
        return sum(min(self._kept.get(key, 0), tokens) for key, tokens in segments)

    def shrink(self, room_tokens: int, *, but: Sequence[Segment] = ()) -> None:
        """Whoever was used least recently gives way until all fit into `room_tokens`, or all are in use.

        but: stretches of a prompt that is about to have them.
        """
        if self.num_tokens <= room_tokens:
            return
        spared = {key for key, _ in but}
        for key in [key for key in self._kept if not self._users[key] and key not in spared]:
            self.num_tokens -= self._kept.pop(key)
            if self.num_tokens <= room_tokens:
                return

    @property
    def hit_rate(self) -> float:
        """Share of all prompts' tokens that were matched."""
        return self.matched_tokens / self.queried_tokens if self.queried_tokens else 0.0
