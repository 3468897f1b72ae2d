import pytest

from swiftspec.engine.model.memory import free_memory_bytes, require_memory


def test_this_machine_has_some_memory_to_spare() -> None:
    assert 0 < free_memory_bytes() < 1 << 50


def test_what_does_not_fit_is_refused_with_both_figures() -> None:
    require_memory(1, "a byte")
    with pytest.raises(ValueError, match=r"^the model needs 1e\+06 GB of memory; this machine has \S+ GB to spare$"):
        require_memory(10**15, "the model")
