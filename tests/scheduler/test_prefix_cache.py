from swiftspec.scheduler.prefix_cache import PrefixCache, Segment

SYSTEM: Segment = ("system", 100)


def prompt(number: int) -> list[Segment]:
    return [SYSTEM, (number, 466)]


def test_whole_blocks_are_matched_and_never_the_last_token() -> None:
    cache = PrefixCache(block_tokens=16)
    assert cache.matched(prompt(1), 566) == 0
    assert cache.hold(prompt(1)) == 566
    assert cache.matched(prompt(1), 566) == 560
    assert cache.matched(prompt(2), 566) == 96, "six blocks of the system prompt"
    assert cache.matched([("only", 32)], 32) == 0
    cache.hold([("only", 32)])
    assert cache.matched([("only", 32)], 32) == 16, "the last token is always computed"


def test_a_drafter_with_layers_of_its_own_gives_up_blocks() -> None:
    cache = PrefixCache(block_tokens=16, gives_up=1)
    cache.hold(prompt(1))
    assert cache.matched(prompt(1), 566) == 544
    assert cache.matched([("other", 5)], 5) == 0


def test_a_stretch_counts_once_and_gives_way_when_nobody_has_it() -> None:
    cache = PrefixCache(block_tokens=16)
    for number in (1, 2):
        cache.hold(prompt(number))
    assert cache.num_tokens == 100 + 2 * 466
    cache.shrink(0)
    assert cache.num_tokens == 1032, "both are in use"
    cache.release(prompt(1))
    cache.shrink(600)
    assert cache.num_tokens == 566
    assert cache.matched(prompt(1), 566) == 96
    assert cache.matched(prompt(2), 566) == 560


def test_the_least_recently_used_gives_way_first() -> None:
    cache = PrefixCache(block_tokens=1)
    for key in "abc":
        cache.hold([(key, 10)])
        cache.release([(key, 10)])
    cache.hold([("a", 10)])
    cache.release([("a", 10)])
    cache.shrink(20)
    assert [cache.matched([(key, 10)], 20) for key in "abc"] == [10, 0, 10]


def test_without_a_cache_nothing_is_shared() -> None:
    cache = PrefixCache(block_tokens=0)
    assert cache.hold(prompt(1)) == 0
    assert cache.matched(prompt(1), 566) == 0
    cache.release(prompt(1))
    assert (cache.num_tokens, cache.hit_rate) == (0, 0.0)


def test_what_a_prompt_is_about_to_have_is_spared() -> None:
    cache = PrefixCache(block_tokens=16)
    for number in (1, 2):
        cache.hold(prompt(number))
        cache.release(prompt(number))
    assert cache.present([SYSTEM, (1, 600)]) == 566
    cache.shrink(600, but=prompt(1))
    assert cache.present(prompt(1)) == 566
    assert cache.present([(2, 466)]) == 0
