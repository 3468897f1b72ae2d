// Products of rows with a packed matrix: y = x W^T.
//
// Each output is summed over k in ascending order by itself, so that a row's result does not depend, not even in its last
// bit, on how many rows or threads there are.
#pragma once

#include "formats.hpp"

struct Adapter;

struct Matrix {
    const void* panels;   // as formats.hpp says
    const float* scales;  // [N] of int8 weights, or null
    const float* bias;    // [N] or null
    int32_t num_outputs, num_inputs;
    Format format;
    const Adapter* adapter;  // or null

    int num_panels() const { return (num_outputs + PANEL - 1) / PANEL; }
};

// A product of two thin matrices (LoRA) that is added to a large one: y = x W^T + (x down^T) up^T.
struct Adapter {
    Matrix down;  // [rank, K]
    Matrix up;    // [N, rank]
};

// Rows to be multiplied, and the same rows rounded if the matrix wants them so.
struct Inputs {
    const float* values;      // [R, K]
    const uint32_t* rounded;  // [R, width], or null
    int64_t width;

    Inputs(const float* values, const uint32_t* rounded = nullptr, int64_t width = 0)
        : values(values), rounded(rounded), width(width) {}
    Inputs from(int64_t row, int size) const {
        return {values + row * size, rounded ? rounded + row * width : nullptr, width};
    }
};

// What a core reads ahead of its products, per panel: processors stop at the end of a page, and a forward is bound by
// reading. Into the second cache, which waits for more lines at a time than the first.
constexpr int AHEAD_BYTES = 6144;

// Words of rows, as a format reads them.
struct Words {
    const Word* first;
    int64_t stride;
    const Word* row(int r) const { return first + r * stride; }
};

// ROWS rows times PANELS panels, COUNT vectors of each from vector FIRST: sums in registers. out [PANELS][rows][32].
template <class W, int ROWS, int PANELS, int FIRST, int COUNT>
struct Tile {
    using Stored = typename W::Stored;
    static constexpr int GROUP = PANEL * W::INPUTS, GROUP_BYTES = GROUP * sizeof(Stored);
    static constexpr int AHEAD = AHEAD_BYTES / GROUP_BYTES;

    const Words x;
    const Stored* const panel;
    const int num_groups;
    float* const out;
    const int64_t panel_stride;
    const int64_t stored = int64_t(num_groups) * GROUP;  // in a panel
    typename W::Sum sums[PANELS][ROWS][COUNT];

    INLINE void run() {
        // Behind a panel's end comes the panel that is next to be read beside its neighbours, not its neighbour.
        const int turn = std::max(0, num_groups - AHEAD);
        for (int begin = 0, end; begin < num_groups; begin = end) {
            end = begin + std::min(W::BLOCK, num_groups - begin);
            start(begin);
            add(begin, std::min(end, turn), int64_t(AHEAD) * GROUP);
            add(std::max(begin, turn), end, int64_t(AHEAD) * GROUP + (PANELS - 1) * stored);
            finish(begin);
        }
    }

   private:
    INLINE void add(int from, int to, int64_t ahead) {
        for (int group = from; group < to; ++group) {
            const Stored* const at = panel + int64_t(group) * GROUP;
#pragma GCC unroll 8
            for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 2
                for (int byte = 0; byte < GROUP_BYTES; byte += 64)
                    __builtin_prefetch(reinterpret_cast<const char*>(at + p * stored + ahead) + byte, 0, 2);
            add_words(at, group, std::make_integer_sequence<int, W::WORDS>());
        }
    }

    template <int... WORD>
    INLINE void add_words(const Stored* at, int group, std::integer_sequence<int, WORD...>) {
        (add_word<WORD>(at, group), ...);
    }

    template <int WORD>
    INLINE void add_word(const Stored* at, int group) {
        decltype(W::template weights<WORD>(at)) weights[PANELS][COUNT];
#pragma GCC unroll 8
        for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 8
            for (int v = 0; v < COUNT; ++v)
                weights[p][v] = W::template weights<WORD>(at + p * stored + (FIRST + v) * LANES * W::INPUTS);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const auto input = W::input(x.row(r)[int64_t(group) * W::WORDS + WORD]);
#pragma GCC unroll 8
            for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 8
                for (int v = 0; v < COUNT; ++v) sums[p][r][v] = W::add(input, weights[p][v], sums[p][r][v]);
        }
    }

    INLINE void start(int group) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            typename W::Sum first{};
            if constexpr (std::is_same_v<W, Int8>) first += int32_t(block_of(r, group)[1]);
#pragma GCC unroll 8
            for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 8
                for (int v = 0; v < COUNT; ++v) sums[p][r][v] = first;
        }
    }

    INLINE void finish(int group) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
            for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 8
                for (int v = 0; v < COUNT; ++v) {
                    float* const to = out + p * panel_stride + r * PANEL + (FIRST + v) * LANES;
                    if constexpr (std::is_same_v<W, Int8>) {
                        const Vec before = group ? load<Vec>(to) : Vec{};
                        const Vec total = __builtin_convertvector(sums[p][r][v], Vec);
                        store(to, multiply_add(splat(load<float>(block_of(r, group))), total, before));
                    } else {
                        store(to, sums[p][r][v]);
                    }
                }
    }

    const Word* block_of(int r, int group) const {
        return x.row(r) + int64_t(num_groups) * W::WORDS + 2 * (group / W::BLOCK);
    }
};

template <class W, int ROWS, int PANELS, int FIRST, int COUNT>
inline void tile(Words x, const typename W::Stored* panel, int num_groups, float* out, int64_t panel_stride) {
    Tile<W, ROWS, PANELS, FIRST, COUNT>{x, panel, num_groups, out, panel_stride}.run();
}

// Enough independent sums to keep the multipliers busy, few enough for the registers.
constexpr int MOST_SUMS = LANES == 16 ? 24 : 12, REGISTERS = LANES == 16 ? 32 : 16;
constexpr int PANELS_AT_ONCE = LANES == 16 ? 4 : 2;  // of one row

template <class W, int ROWS>
inline void rows_times_panels(Words x, const typename W::Stored* panel, int num_groups, int num_panels, float* out,
                              int64_t panel_stride) {
    constexpr int SUMS = ROWS * VECTORS;
    constexpr int TOGETHER = SUMS * PANELS_AT_ONCE < MOST_SUMS ? PANELS_AT_ONCE : SUMS * 2 <= MOST_SUMS ? 2 : 1;
    const int64_t stored = int64_t(num_groups) * W::INPUTS * PANEL;
    int p = 0;
    if constexpr (TOGETHER > 1)
        for (; p + TOGETHER <= num_panels; p += TOGETHER)
            tile<W, ROWS, TOGETHER, 0, VECTORS>(x, panel + p * stored, num_groups, out + p * panel_stride, panel_stride);
    for (; p < num_panels; ++p) {
        const typename W::Stored* const from = panel + p * stored;
        float* const sums = out + p * panel_stride;
        if constexpr (SUMS <= MOST_SUMS && SUMS + VECTORS < REGISTERS) {
            tile<W, ROWS, 1, 0, VECTORS>(x, from, num_groups, sums, panel_stride);
        } else {
            constexpr int HALF = VECTORS / 2;
            tile<W, ROWS, 1, 0, HALF>(x, from, num_groups, sums, panel_stride);
            tile<W, ROWS, 1, HALF, HALF>(x, from, num_groups, sums, panel_stride);
        }
    }
}

constexpr int MOST_ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 3;  // of a tile

// All rows times panels `first` to `first + count` of a matrix: sums [count][R][32], without scales or bias.
template <class W>
void products(Words x, int num_rows, const Matrix& matrix, int first, int count, float* sums) {
    const int num_groups = (matrix.num_inputs + W::INPUTS - 1) / W::INPUTS;
    const int64_t stored = int64_t(num_groups) * W::INPUTS * PANEL;
    const auto* const panels = static_cast<const typename W::Stored*>(matrix.panels) + first * stored;
    const int64_t panel_stride = int64_t(num_rows) * PANEL;
    // Full tiles and a rest, not equal ones: full ones keep the multipliers busiest, and few rows take several panels at once.
    for (int row = 0; row < num_rows; row += MOST_ROWS) {
        const Words from{x.row(row), x.stride};
        float* const to = sums + row * PANEL;
        switch (std::min(MOST_ROWS, num_rows - row)) {
#define CASE(ROWS)                                                                         \
    case ROWS:                                                                             \
        if constexpr (ROWS <= MOST_ROWS)                                                   \
            rows_times_panels<W, ROWS>(from, panels, num_groups, count, to, panel_stride); \
        break
            CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6);
            CASE(7); CASE(8); CASE(9); CASE(10); CASE(11); CASE(12);
#undef CASE
        }
    }
}

inline void products(const Inputs& x, int num_rows, const Matrix& matrix, int first, int count, float* sums) {
    with_format(matrix.format, [&](auto format) {
        using W = decltype(format);
        if constexpr (W::EXACT)
            products<W>({reinterpret_cast<const Word*>(x.values), matrix.num_inputs}, num_rows, matrix, first, count,
                        sums);
        else
            products<W>({x.rounded, x.width}, num_rows, matrix, first, count, sums);
    });
}
