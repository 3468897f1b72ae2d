"""Steps shared by policies: expansion, following the target's choices, the target's half of a round."""

from collections.abc import Callable, Sequence
from functools import partial

from swiftspec.policies.effects import (
    Choose,
    Commit,
    DraftForward,
    KeepKV,
    PeerError,
    Program,
    Role,
    Send,
    Stop,
    Subprogram,
    Subtree,
    TargetForward,
    Verdict,
    prefill,
    receive_subtree,
    receive_verdict,
)
from swiftspec.policies.request import Request
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.trees.masked_tree import MaskedTree


def planted(request: Request, *, capacity: int, temperature: float = 1.0) -> Subprogram[TokenTree]:
    """Prefill the draft; the tree, which is only its root."""
    yield from prefill(Role.DRAFT, request.prompt[:-1])
    return TokenTree(request.prompt[-1], position=request.root_position, capacity=capacity, temperature=temperature)


def expand(tree: TokenTree | MaskedTree, num_rows: int, num_candidates: int, *, level: int = 0) -> Subprogram[bool]:
    """One expansion: forward the best unexpanded leaves and add their candidates below them.

    level: as in `DraftForward`. False if it was not computed.
    """
    rows = tree.pick(num_rows)
    candidates = yield from DraftForward(rows, num_candidates, level=level)
    if candidates:
        tree.grow(candidates)
        return True
    tree.put_back()
    return False


def expand_masked(tree: MaskedTree, num_rows: int, num_candidates: int, *, level: int = 0) -> Subprogram[bool]:
    """One expansion of a parallel draft's tree: as `expand`, with masks, which leave the cache at once."""
    has_grown = yield from expand(tree, num_rows, num_candidates, level=level)
    if has_grown:
        yield KeepKV(Role.DRAFT, *tree.compact())
    return has_grown


def exchange(tree: TokenTree, subtree: Subtree) -> Subprogram[bool | None]:
    """Send a subtree and follow its verdict; whether that is a hit, as of `TokenTree.advance`. None: it is finished."""
    yield Send(subtree)
    verdict = yield from receive_verdict()
    if isinstance(verdict, Stop):
        return None
    is_hit = tree.advance(verdict.tokens)
    yield KeepKV(Role.DRAFT, *tree.compact())
    return is_hit


def follow(subtree: Subtree, choices: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Walk from the root along the target's own choices, which may be of the first nodes only (see `Policy.elastic`).

    Returns
    -------
    path : tuple of int
        Indices of the root and the accepted nodes: the rows whose KV stays.
    tokens : tuple of int
        The accepted tokens, then the bonus token.
    """
    if len(choices) == 1:
        return (0,), (choices[0],)
    child_of = {
        (parent, token): index
        for index, (token, parent) in enumerate(zip(subtree.tokens, subtree.parents, strict=True))
        if index < len(choices)
    }
    index, path, tokens = 0, [0], [choices[0]]
    while (child := child_of.get((index, choices[index]))) is not None:
        index = child
        path.append(index)
        tokens.append(choices[index])
    return tuple(path), tuple(tokens)


def below(subtree: Subtree, tokens: Sequence[int]) -> Subtree:
    """The rest of a subtree once `tokens` after its root are verified: the last of them, and its descendants.

    Only that token if `tokens` leave the subtree.
    """
    index = 0
    for token in tokens:
        children = (child for child, parent in enumerate(subtree.parents) if parent == index)
        index = next((child for child in children if subtree.tokens[child] == token), len(subtree.tokens))
    renumbered = {index: 0}
    kept, parents = [tokens[-1]], [-1]
    for node in range(index + 1, len(subtree.tokens)):
        if (parent := renumbered.get(subtree.parents[node])) is not None:
            renumbered[node] = len(kept)
            kept.append(subtree.tokens[node])
            parents.append(parent)
    return Subtree(subtree.position + len(tokens), tuple(kept), tuple(parents))


def verify_at_once(subtree: Subtree) -> Subprogram[tuple[int, ...]]:
    """One forward over a subtree; the target's choice at each node."""
    return (yield from TargetForward(subtree.rows()))


def verify_rounds(
    request: Request,
    *,
    max_rows: int,
    verify: Callable[[Subtree], Subprogram[tuple[int, ...]]] = verify_at_once,
    keep_first: bool = False,
) -> Program:
    """The target's half of a disaggregated policy: verify the draft's subtrees, up to `max_rows` nodes, every round.

    keep_first: keep the KV before the verdict is sent, which then carries its features.
    """
    yield from prefill(Role.TARGET, request.prompt[:-1])
    yield Send(Verdict(()))
    receive = partial(receive_subtree, max_rows=max_rows)
    yield from verify_drafted(request, receive=receive, verify=verify, keep_first=keep_first)


def verify_drafted(
    request: Request,
    *,
    receive: Callable[[int, int], Subprogram[Subtree]],
    verify: Callable[[Subtree], Subprogram[tuple[int, ...]]] = verify_at_once,
    keep_first: bool = False,
) -> Program:
    """Rounds of a target after its prefill. `receive`: the next subtree under a root, given its token and position.

    keep_first: as of `verify_rounds`.
    """
    root, position = request.prompt[-1], request.root_position
    while True:
        subtree = yield from receive(root, position)
        choices = yield from verify(subtree)
        path, verified = follow(subtree, choices)
        tokens, finished = request.clip(verified, num_generated=position - request.root_position)
        if keep_first and not finished:
            yield KeepKV(Role.TARGET, path, len(path))
        # As early as possible: until the verdict arrives the draft grows a tree that may be stale.
        yield Send(Stop() if finished else Verdict(tokens))
        yield Commit(tokens)
        if finished:
            return
        if not keep_first:
            yield KeepKV(Role.TARGET, path, len(path))
        root = tokens[-1]
        position += len(tokens)


def _drafted_after(pending: Subtree, drafted: Subtree) -> tuple[tuple[int, ...], ...]:
    """Tokens after each node of a subtree in a larger one of the same root; none after a node that it lacks."""
    after: list[dict[int, int]] = [{} for _ in drafted.tokens]  # token and node, by node
    for node, (token, parent) in enumerate(zip(drafted.tokens, drafted.parents, strict=True)):
        if parent >= 0:
            after[parent][token] = node
    places: list[int | None] = []
    for token, parent in zip(pending.tokens, pending.parents, strict=True):
        above = places[parent] if parent >= 0 else None
        places.append(0 if parent < 0 else None if above is None else after[above].get(token))
    return tuple(() if place is None else tuple(after[place]) for place in places)


def verify_windows(request: Request, *, max_rows: int, max_pending: int) -> Program:
    """The target's half in lock step: verify what is pending while the draft adds to it, then exchange.

    The draft sends all its nodes below the last verified token, up to `max_rows`. Those below the bonus token, at most
    `max_pending` rows including that token, are pending next.
    """
    yield from prefill(Role.TARGET, request.prompt[:-1])
    pending = Subtree.chain(request.root_position, request.prompt[-1:])
    while True:
        choices = yield from TargetForward(pending.rows())
        drafted = yield from receive_subtree(pending.tokens[0], pending.position, max_rows=max_rows)
        if request.ratio_tested:
            choices = yield from Choose(_drafted_after(pending, drafted))
        path, verified = follow(pending, choices)
        tokens, finished = request.clip(verified, num_generated=pending.position - request.root_position)
        yield Send(Stop() if finished else Verdict(tokens))
        yield Commit(tokens)
        if finished:
            return
        yield KeepKV(Role.TARGET, path, len(path))
        pending = below(drafted, tokens)
        if len(pending.tokens) > max_pending:
            raise PeerError(f"expected up to {max_pending} nodes from token {tokens[-1]} on, got {drafted!r}")
