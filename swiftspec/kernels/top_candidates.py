"""The most likely tokens of every row with their log-probabilities: log-softmax and top-k without a full sort.

R rows, V vocabulary, K candidates, N blocks of a row. Two launches: every block finds its own K candidates and its
part of the softmax's sum; then one program per row merges. K is small: K maximum searches cost less than a sort.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from swiftspec.kernels.runtime import FLOATS, check_dtype, check_layout, check_shape

MAX_CANDIDATES = 32
MAX_VOCABULARY = 1 << 18
BLOCK = 2048  # a row of 152k makes 75 programs, enough for its 300 KB, and a merge of 600 values for K = 8


def top_candidates_reference(logits_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(log-softmax in fp32, tokens) of the k largest logits, largest first; ties go to the lower token."""
    tokens_RK = logits_RV.float().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return logits_RV.float().log_softmax(-1).gather(1, tokens_RK), tokens_RK.int()


@triton.jit
def _block_candidates_kernel(
    logits, values, tokens, peaks, totals, size,
    K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """values, tokens <- K largest x of block program_id(1), peaks <- max x, totals <- sum of exp(x - peak)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cell = row * tl.num_programs(1) + block
    column = block * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    x = tl.load(logits + row * size + column, mask=column < size, other=float("-inf")).to(tl.float32)
    # Finite even if nothing in the block is, to avoid infinity minus infinity.
    peak = tl.maximum(tl.max(x, axis=0), -1.0e30)
    tl.store(peaks + cell, peak)
    tl.store(totals + cell, tl.sum(tl.exp(x - peak), axis=0))
    for i in range(K):
        value, index = tl.max(x, axis=0, return_indices=True)
        tl.store(values + cell * K + i, value)
        tl.store(tokens + cell * K + i, block * BLOCK + index)
        x = tl.where(column == block * BLOCK + index, float("-inf"), x)


@triton.jit
def _merge_candidates_kernel(
    values, tokens, peaks, totals, logprobs, chosen, num_blocks,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_NK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip  # grouped: tensors, sizes, constants
    """logprobs, chosen <- K largest of all blocks' x, minus log of the sum over blocks of total exp(peak)."""
    row = tl.program_id(0)
    block_N = tl.arange(0, BLOCK_N)
    index_NK = tl.arange(0, BLOCK_NK)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    peak_N = tl.load(peaks + row * num_blocks + block_N, mask=block_N < num_blocks, other=-1.0e30)
    total_N = tl.load(totals + row * num_blocks + block_N, mask=block_N < num_blocks, other=0.0)
    first = row * num_blocks * K
    x_NK = tl.load(values + first + index_NK, mask=index_NK < num_blocks * K, other=float("-inf"))
    peak = tl.max(peak_N, axis=0)
    log_total = tl.log(tl.sum(total_N * tl.exp(peak_N - peak), axis=0))
    for i in range(K):
        # Blocks are in token order, so the first of equal values is the lowest token.
        value, index = tl.max(x_NK, axis=0, return_indices=True)
        # In this order: adding a logarithm to a large logit first would lose the logarithm's digits.
        tl.store(logprobs + row * K + i, (value - peak) - log_total)
        tl.store(chosen + row * K + i, tl.load(tokens + first + index))
        x_NK = tl.where(index_NK == index, float("-inf"), x_NK)


def top_candidates(logits_RV: Tensor, k: int, *, pdl: bool = False) -> tuple[Tensor, Tensor]:
    """`top_candidates_reference`: (logprobs fp32 [R, k], tokens int32 [R, k]), in two launches.

    logits_RV: fp32, fp16 or bf16, contiguous; V up to 262144. No row with not-a-number, or with fewer than k that are
    finite. k: 1 to 32, and at most V.
    """
    check_shape("logits_RV", logits_RV, (None, None))
    num_rows, size = logits_RV.shape
    if not 0 < size <= MAX_VOCABULARY:
        raise ValueError(f"logits_RV has shape {tuple(logits_RV.shape)}; supported: V from 1 to {MAX_VOCABULARY}")
    if not 1 <= k <= min(MAX_CANDIDATES, size):
        raise ValueError(f"k is {k}; expected 1 to {min(MAX_CANDIDATES, size)}")
    check_dtype(FLOATS, logits_RV=logits_RV)
    check_layout(logits_RV=logits_RV)
    device = logits_RV.device
    logprobs_RK = torch.empty(num_rows, k, dtype=torch.float32, device=device)
    tokens_RK = torch.empty(num_rows, k, dtype=torch.int32, device=device)
    if num_rows:
        num_blocks = triton.cdiv(size, BLOCK)
        values_RNK = torch.empty(num_rows, num_blocks, k, dtype=torch.float32, device=device)
        tokens_RNK = torch.empty(num_rows, num_blocks, k, dtype=torch.int32, device=device)
        peaks_RN, totals_RN = torch.empty(2, num_rows, num_blocks, dtype=torch.float32, device=device)
        _block_candidates_kernel[(num_rows, num_blocks)](
            logits_RV,
            values_RNK,
            tokens_RNK,
            peaks_RN,
            totals_RN,
            size,
            K=k,
            BLOCK=BLOCK,
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
        _merge_candidates_kernel[(num_rows,)](
            values_RNK,
            tokens_RNK,
            peaks_RN,
            totals_RN,
            logprobs_RK,
            tokens_RK,
            num_blocks,
            K=k,
            BLOCK_N=triton.next_power_of_2(num_blocks),
            BLOCK_NK=triton.next_power_of_2(num_blocks * k),
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return logprobs_RK, tokens_RK
