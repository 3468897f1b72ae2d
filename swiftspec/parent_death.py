"""Signals from the kernel when a parent process ends: the only way to reach a stopped child. Linux only."""

import ctypes
import errno
import os
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def signal_on_parent_death(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends.

    More exactly, when the *thread* of the parent that started this process ends; and not if it has ended already, so
    compare `os.getppid` afterwards. A forked child has to ask again.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends; for programs, not for libraries."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    """OSError if the kernel refuses, or is not Linux; nothing changes then."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"prctl({option}): only Linux has it")
    library = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if library.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
