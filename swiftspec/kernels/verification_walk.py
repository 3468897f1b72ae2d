"""The verdict of a greedy or sampled verification, found on the device: how far do the target's choices lead?

R rows of one forward, a tree: row 0 is the root, parents come before their children. One program of one warp, whose
registers hold the tree; every accepted token is one step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import check_contiguous, check_dtype, check_shape, check_together

__all__ = ["MAX_ROWS", "Walk", "verification_walk", "verification_walk_reference"]

MAX_ROWS = 64
INTEGERS = (torch.int32, torch.int64)


class Walk(NamedTuple):
    """int32, on the device, and in this order one piece of memory, for a host that wants all in one copy.

    path_R        the root and the accepted rows, then -1: on a tree that was empty, the slots that `keep_slots` takes
    num_verified  [1]: length of the path; accepted tokens are one less
    bonus         [1]: bonus token
    """

    path_R: Tensor
    num_verified: Tensor
    bonus: Tensor


def verification_walk_reference(parents_R: Tensor, tokens_R: Tensor, choices_R: Tensor) -> Walk:
    """From the root on to the first child whose token is the target's choice behind its parent, until there is none."""
    parents, tokens, choices = parents_R.tolist(), tokens_R.tolist(), choices_R.tolist()
    path = [0]
    for row in range(1, len(parents)):  # parents first: one pass meets the whole path
        if parents[row] == path[-1] and tokens[row] == choices[path[-1]]:
            path.append(row)
    bonus, length = choices[path[-1]], len(path)
    padded = path + [-1] * (len(parents) - length)
    return _split(torch.tensor([*padded, length, bonus], dtype=torch.int32, device=parents_R.device))


@triton.jit
def _verification_walk_kernel(parents, tokens, choices, out, num_rows, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """node <- first row with parent = node and token = choice behind node, from row 0, until there is none."""
    row_R = tl.arange(0, BLOCK)
    inside_R = row_R < num_rows
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    parent_R = tl.load(parents + row_R, mask=inside_R, other=-1)
    # A parent behind its child is no tree, and could lead in a circle.
    is_child_R = (parent_R >= 0) & (parent_R < row_R)
    choice_R = tl.load(choices + parent_R, mask=is_child_R, other=0)
    agrees_R = is_child_R & (tl.load(tokens + row_R, mask=inside_R, other=0) == choice_R)

    path_R = tl.where(row_R == 0, 0, -1)
    length = 1
    node = 0
    child = tl.min(tl.where(agrees_R & (parent_R == node), row_R, BLOCK), axis=0)
    while child < BLOCK:
        path_R = tl.where(row_R == length, child, path_R)
        length += 1
        node = child
        child = tl.min(tl.where(agrees_R & (parent_R == node), row_R, BLOCK), axis=0)
    tl.store(out + row_R, path_R, mask=inside_R)
    tl.store(out + num_rows, length)
    tl.store(out + num_rows + 1, tl.load(choices + node).to(tl.int32))


def verification_walk(
    parents_R: Tensor, tokens_R: Tensor, choices_R: Tensor, *, out: Tensor | None = None, pdl: bool = False
) -> Walk:
    """`verification_walk_reference` in one launch.

    Parameters
    ----------
    parents_R : Tensor
        int32, contiguous, as all tensors here: row of the parent, -1 for the root. R from 1 to 64.
    tokens_R, choices_R : Tensor
        int32 or int64: a row's token, and the target's choice behind it.
    out : Tensor, optional
        Buffer of the answer, int32 [R + 2].
    pdl : bool
        Programmatic dependent launch: the kernel starts while its predecessor ends. Only on CUDA, sm_90 and newer.

    Raises
    ------
    ValueError
        For a shape, dtype, device or layout that is not supported.
    """
    check_shape("parents_R", parents_R, (None,))
    num_rows = len(parents_R)
    if not 1 <= num_rows <= MAX_ROWS:
        raise ValueError(f"parents_R has shape {tuple(parents_R.shape)}; supported: R from 1 to {MAX_ROWS}")
    check_shape("tokens_R", tokens_R, (num_rows,), why="R of parents_R")
    check_shape("choices_R", choices_R, (num_rows,), why="R of parents_R")
    if out is None:
        out = torch.empty(num_rows + 2, dtype=torch.int32, device=parents_R.device)
    check_shape("out", out, (num_rows + 2,), why="R + 2")
    check_dtype("parents_R", parents_R, (torch.int32,))
    check_dtype("tokens_R", tokens_R, INTEGERS)
    check_dtype("choices_R", choices_R, INTEGERS)
    check_dtype("out", out, (torch.int32,))
    tensors = {"parents_R": parents_R, "tokens_R": tokens_R, "choices_R": choices_R, "out": out}
    check_together(**tensors)
    check_contiguous(**tensors)
    block = triton.next_power_of_2(num_rows)
    _verification_walk_kernel[(1,)](
        parents_R, tokens_R, choices_R, out, num_rows, BLOCK=block, PDL=pdl, num_warps=1, launch_pdl=pdl
    )
    return _split(out)


def _split(out: Tensor) -> Walk:
    return Walk(out[:-2], out[-2:-1], out[-1:])
