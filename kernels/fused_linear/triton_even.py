"""The products of triton_wide by programs that all read equally much.

A grid of tiles rarely fills all multiprocessors to the end. Here there are as many programs as the device runs at
once, and the work, K step by K step and tile by tile, is cut into that many equal parts. So a program may begin and
end inside a tile: it leaves what it has of that one in scratch memory, and who comes last sums the parts in the order
of their programs. One loop goes over all steps of a program, so that weights are on their way also between tiles.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pillion.kernels.fused_linear.triton_prefetch import prefetch_rows
from pillion.kernels.fused_linear.triton_wide_ends import finish_linear, finish_qkv, load_squares

# A name that kernels may use.
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _meet():
    """A barrier of the program's threads. Around `tl.debug_barrier` loops are not pipelined."""
    if not _INTERPRETED:
        tl.inline_asm_elementwise(
            "bar.sync 0; mov.u32 $0, 0;", "=r,r", [0], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _share(num_steps):
    """The first of this program's steps, and what is behind its last."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    return program * num_steps // programs, (program + 1) * num_steps // programs


@triton.jit
def _owner(step, num_steps):
    """The program whose share has this step."""
    return ((step + 1) * tl.num_programs(0) - 1) // num_steps


@triton.jit
def _wait(
    w_ptr,
    n1,
    n2,
    last_n,
    at,
    k,
    prefetch,
    early,
    BLOCK_N: tl.constexpr,
    TWO: tl.constexpr,
):
    """Asks for the first weights, then waits for the launch before."""
    if prefetch > 0:
        lanes = tl.arange(0, BLOCK_N)
        prefetch_rows(w_ptr, n1 + lanes, last_n, at, k, prefetch, BLOCK_N)
        if TWO:
            prefetch_rows(w_ptr, n2 + lanes, last_n, at, k, prefetch, BLOCK_N)
    gdc_wait()
    if early:
        gdc_launch_dependents()


@triton.jit
def _whole_tile(
    acc1,
    acc2,
    scratch_ptr,
    arrivals_ptr,
    tile,
    begin,
    step,
    num_chunks,
    num_steps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TWO: tl.constexpr,
):
    """Behind this program's last step of a tile: whether it has to finish it, and with which sums."""
    SIZE: tl.constexpr = BLOCK_N * ROWS
    PRODUCTS: tl.constexpr = 2 if TWO else 1
    program = tl.program_id(0)
    first_step = tile * num_chunks
    is_done = (begin <= first_step) & (step + 1 == first_step + num_chunks)
    if not is_done:
        # A program leaves up to two parts: of the tile that it begins inside, and of the one that it ends inside.
        inside = tl.arange(0, BLOCK_N)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        part = program * 2 + (begin <= first_step).to(tl.int32)
        at = scratch_ptr + part.to(tl.int64) * (PRODUCTS * SIZE) + inside
        tl.store(at, acc1)
        if TWO:
            tl.store(at + SIZE, acc2)
        _meet()  # all threads' stores come before the one thread's arrival
        arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel")
        first = _owner(first_step, num_steps)
        last = _owner(first_step + num_chunks - 1, num_steps)
        is_done = arrived == last - first
        if is_done:
            tl.store(arrivals_ptr + tile, 0)
            acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
            acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
            for other in range(first, last + 1):
                part = other * 2 + (other == first).to(tl.int32)
                at = scratch_ptr + part.to(tl.int64) * (PRODUCTS * SIZE) + inside
                acc1 += tl.load(at, cache_modifier=".cg")
                if TWO:
                    acc2 += tl.load(at + SIZE, cache_modifier=".cg")
    return is_done, acc1, acc2


@triton.jit(do_not_specialize=["num_rows", "num_parts", "prefetch", "early"])
def even_linear_kernel(
    x_desc,
    w_desc,
    w_ptr,
    squares_ptr,
    bias_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    scaled_ptr,
    out_squares_ptr,
    scratch_ptr,
    arrivals_ptr,
    num_rows,
    num_parts,
    n_out,
    k,
    out_stride,
    prefetch,
    early,
    eps,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `wide_linear_kernel`."""
    num_chunks = tl.cdiv(k, BLOCK_K)
    row_blocks = tl.cdiv(num_rows, ROWS)
    num_steps = tl.cdiv(n_out, BLOCK_N) * row_blocks * num_chunks
    begin, end = _share(num_steps)
    if PDL:
        n1 = begin // num_chunks // row_blocks * BLOCK_N
        last_n = n_out * (2 if GATED else 1) - 1
        at = begin % num_chunks * BLOCK_K
        _wait(w_ptr, n1, n1 + n_out, last_n, at, k, prefetch, early, BLOCK_N, GATED)
    acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    for step in tl.range(begin, end, num_stages=STAGES):
        tile = step // num_chunks
        at = step % num_chunks * BLOCK_K
        n_tile = tile // row_blocks
        row = tile % row_blocks * ROWS
        w1 = w_desc.load([n_tile * BLOCK_N, at])
        x = x_desc.load([row, at])
        acc1 = tl.dot(w1, x.T, acc1)
        if GATED:
            w2 = w_desc.load([n_tile * BLOCK_N + n_out, at])
            acc2 = tl.dot(w2, x.T, acc2)
        if (step + 1 == end) | ((step + 1) % num_chunks == 0):
            is_done, sum1, sum2 = _whole_tile(
                acc1, acc2, scratch_ptr, arrivals_ptr, tile, begin, step, num_chunks, num_steps,
                ROWS, BLOCK_N, GATED,
            )  # fmt: skip
            if is_done:
                rows = row + tl.arange(0, ROWS)
                squares = 0.0
                if PARTS > 0:
                    squares = load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
                finish_linear(
                    sum1, sum2, squares, bias_ptr, residual_ptr, gain_ptr, out_ptr, scaled_ptr,
                    out_squares_ptr, rows, n_tile, num_rows, n_out, k, out_stride, eps,
                    BLOCK_N, PARTS, GATED, RESIDUAL, BIAS, SCALED,
                )  # fmt: skip
            acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
            acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)


@triton.jit(
    do_not_specialize=["num_rows", "num_parts", "num_q_heads", "num_kv_heads", "prefetch", "early"]
)
def even_qkv_kernel(
    x_desc,
    w_desc,
    w_ptr,
    squares_ptr,
    bias_ptr,
    cos_sin_ptr,
    slot_mapping_ptr,
    q_ptr,
    kv_ptr,
    scratch_ptr,
    arrivals_ptr,
    num_rows,
    num_parts,
    k,
    kv_block_stride,
    kv_half_stride,
    kv_head_stride,
    num_q_heads,
    num_kv_heads,
    prefetch,
    early,
    eps,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `wide_qkv_kernel`."""
    HALF: tl.constexpr = HEAD_DIM // 2
    WHOLE: tl.constexpr = BLOCK_N >= HEAD_DIM
    PER_HALF: tl.constexpr = 1 if WHOLE else HALF // BLOCK_N
    num_columns = (num_q_heads + 2 * num_kv_heads) * HEAD_DIM
    num_chunks = tl.cdiv(k, BLOCK_K)
    row_blocks = tl.cdiv(num_rows, ROWS)
    num_steps = tl.cdiv(num_columns, BLOCK_N if WHOLE else 2 * BLOCK_N) * row_blocks * num_chunks
    begin, end = _share(num_steps)
    if PDL:
        n_tile = begin // num_chunks // row_blocks
        n1 = n_tile * BLOCK_N
        if not WHOLE:
            n1 = n_tile // PER_HALF * HEAD_DIM + n_tile % PER_HALF * BLOCK_N
        at = begin % num_chunks * BLOCK_K
        _wait(w_ptr, n1, n1 + HALF, num_columns - 1, at, k, prefetch, early, BLOCK_N, not WHOLE)
    acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    for step in tl.range(begin, end, num_stages=STAGES):
        tile = step // num_chunks
        at = step % num_chunks * BLOCK_K
        n_tile = tile // row_blocks
        n1 = n_tile * BLOCK_N
        if not WHOLE:
            n1 = n_tile // PER_HALF * HEAD_DIM + n_tile % PER_HALF * BLOCK_N
        row = tile % row_blocks * ROWS
        w1 = w_desc.load([n1, at])
        x = x_desc.load([row, at])
        acc1 = tl.dot(w1, x.T, acc1)
        if not WHOLE:
            w2 = w_desc.load([n1 + HALF, at])
            acc2 = tl.dot(w2, x.T, acc2)
        if (step + 1 == end) | ((step + 1) % num_chunks == 0):
            is_done, sum1, sum2 = _whole_tile(
                acc1, acc2, scratch_ptr, arrivals_ptr, tile, begin, step, num_chunks, num_steps,
                ROWS, BLOCK_N, not WHOLE,
            )  # fmt: skip
            if is_done:
                rows = row + tl.arange(0, ROWS)
                squares = load_squares(squares_ptr, rows, num_rows, num_parts, PARTS)
                finish_qkv(
                    sum1, sum2, squares, bias_ptr, cos_sin_ptr, slot_mapping_ptr, q_ptr, kv_ptr,
                    rows, n1, num_rows, k, kv_block_stride, kv_half_stride, kv_head_stride,
                    num_q_heads, num_kv_heads, eps,
                    HEAD_DIM, BLOCK_SIZE, ROWS, BLOCK_N, BIAS,
                )  # fmt: skip
            acc1 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
            acc2 = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
