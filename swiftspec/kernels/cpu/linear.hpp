// Products of a few rows with a packed matrix: y = x W^T.
//
// The outputs of W [N, K] are packed in panels of 32, padded with zeros: [N / 32][K][32]. A lane holds an output, and
// each output is summed over k in ascending order by itself, so that a row's result does not depend, not even in its
// last bit, on how many rows or threads there are.
#pragma once

#include <algorithm>

#include "vectors.hpp"

constexpr int PANEL = 32;
constexpr int VECTORS = PANEL / LANES;

// The numbers are those of swiftspec/engine/model/cpu_packing.py.
enum class Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3 };

struct Adapter;

struct Matrix {
    const void* panels;
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

// How each format becomes fp32: COUNT vectors from vector FIRST of the 32 weights at `row`, in the order that `place`
// gives the outputs of a panel.
struct Float32 {
    using Stored = float;
    static int place(int output) { return output; }
    static float value(Stored stored) { return stored; }
    template <int FIRST, int COUNT>
    static inline void read(const Stored* row, Vec* weights) {
        for (int v = 0; v < COUNT; ++v) weights[v] = load<Vec>(row + (FIRST + v) * LANES);
    }
};

// Two vectors share words: the first in the low halves, the second in the high ones. A bfloat16 is the upper half of
// the float32 with the same value.
struct Bfloat16 {
    using Stored = uint16_t;
    static int place(int output) {
        const int pair = output / (2 * LANES), within = output % (2 * LANES);
        return pair * 2 * LANES + within % LANES * 2 + within / LANES;
    }
    static float value(Stored stored) {
        const uint32_t word = uint32_t(stored) << 16;
        return load<float>(&word);
    }
    template <int FIRST, int COUNT>
    static inline void read(const Stored* row, Vec* weights) {
        static_assert(FIRST % 2 == 0 && COUNT % 2 == 0);
        for (int v = 0; v < COUNT; v += 2) {
            const WordVec words = load<WordVec>(row + (FIRST + v) * LANES);
            weights[v] = (Vec)(words << 16);
            weights[v + 1] = (Vec)(words & 0xffff0000u);
        }
    }
};

struct Float16 {
    using Stored = uint16_t;
    static int place(int output) { return output; }
    static float value(Stored stored) {
#if defined(__F16C__)
        return _cvtsh_ss(stored);
#else
        return 0.0f * stored;
#endif
    }
    template <int FIRST, int COUNT>
    static inline void read(const Stored* row, Vec* weights) {
        for (int v = 0; v < COUNT; ++v) {
#if defined(__AVX512F__)
            weights[v] = (Vec)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(row + (FIRST + v) * LANES));
#elif defined(__F16C__) && defined(__AVX2__)
            weights[v] = (Vec)_mm256_cvtph_ps(load<__m128i>(row + (FIRST + v) * LANES));
#else
            weights[v] = Vec{};  // never packed: see HAS_FLOAT16
#endif
        }
    }
};

#if defined(__AVX512F__) || (defined(__F16C__) && defined(__AVX2__))
constexpr bool HAS_FLOAT16 = true;
#else
constexpr bool HAS_FLOAT16 = false;
#endif

struct Int8 {
    using Stored = int8_t;
    static int place(int output) { return output; }
    template <int FIRST, int COUNT>
    static inline void read(const Stored* row, Vec* weights) {
        for (int v = 0; v < COUNT; ++v) weights[v] = __builtin_convertvector(widened(row + (FIRST + v) * LANES), Vec);
    }

   private:
    static inline IntVec widened(const Stored* from) {
#if defined(__AVX512F__)
        return (IntVec)_mm512_maskz_cvtepi8_epi32(0xffff, load<__m128i>(from));
#elif defined(__AVX2__)
        return (IntVec)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load<int64_t>(from)));
#else
        IntVec numbers;
        for (int lane = 0; lane < LANES; ++lane) numbers[lane] = from[lane];
        return numbers;
#endif
    }
};

// What a core reads ahead of its products, per panel: processors stop at the end of a page, and a forward is bound by
// reading. Into the second cache, which waits for more lines at a time than the first.
constexpr int AHEAD_BYTES = 6144;

// ROWS rows times PANELS panels, COUNT vectors of each from vector FIRST: sums in registers. out [PANELS][rows][32].
template <class W, int ROWS, int PANELS, int FIRST, int COUNT>
inline void tile(const float* x, int64_t x_stride, const typename W::Stored* panel, int num_inputs, float* out,
                 int64_t panel_stride) {
    constexpr int ROW_BYTES = PANEL * sizeof(typename W::Stored);
    constexpr int AHEAD = AHEAD_BYTES / ROW_BYTES;
    Vec sums[PANELS][ROWS][COUNT] = {};
    const int64_t stored = int64_t(num_inputs) * PANEL;
    const auto add = [&](int from, int to, int64_t ahead) {
        for (int k = from; k < to; ++k) {
            const typename W::Stored* const row = panel + int64_t(k) * PANEL;
            Vec weights[PANELS][COUNT];
#pragma GCC unroll 8
            for (int p = 0; p < PANELS; ++p) {
#pragma GCC unroll 2
                for (int byte = 0; byte < ROW_BYTES; byte += 64)
                    __builtin_prefetch(reinterpret_cast<const char*>(row + p * stored + ahead) + byte, 0, 2);
                W::template read<FIRST, COUNT>(row + p * stored, weights[p]);
            }
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r) {
                const Vec input = splat(x[r * x_stride + k]);
#pragma GCC unroll 8
                for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 8
                    for (int v = 0; v < COUNT; ++v) sums[p][r][v] = multiply_add(input, weights[p][v], sums[p][r][v]);
            }
        }
    };
    // Behind a panel's end comes the panel that is next to be read beside its neighbours, not its neighbour.
    const int turn = std::max(0, num_inputs - AHEAD);
    add(0, turn, int64_t(AHEAD) * PANEL);
    add(turn, num_inputs, int64_t(AHEAD) * PANEL + (PANELS - 1) * stored);
    for (int p = 0; p < PANELS; ++p)
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < COUNT; ++v) store(out + p * panel_stride + r * PANEL + (FIRST + v) * LANES, sums[p][r][v]);
}

// Enough independent sums to keep the multipliers busy, few enough for the registers.
constexpr int MOST_SUMS = LANES == 16 ? 24 : 12;
constexpr int PANELS_AT_ONCE = LANES == 16 ? 4 : 2;  // of one row

template <class W, int ROWS>
inline void rows_times_panels(const float* x, int64_t x_stride, const typename W::Stored* panel, int num_inputs,
                              int num_panels, float* out, int64_t panel_stride) {
    constexpr int SUMS = ROWS * VECTORS;
    constexpr int TOGETHER = SUMS * PANELS_AT_ONCE <= MOST_SUMS ? PANELS_AT_ONCE : SUMS * 2 <= MOST_SUMS ? 2 : 1;
    const int64_t stored = int64_t(num_inputs) * PANEL;
    int p = 0;
    if constexpr (TOGETHER > 1)
        for (; p + TOGETHER <= num_panels; p += TOGETHER)
            tile<W, ROWS, TOGETHER, 0, VECTORS>(x, x_stride, panel + p * stored, num_inputs, out + p * panel_stride,
                                                panel_stride);
    for (; p < num_panels; ++p) {
        float* const sums = out + p * panel_stride;
        if constexpr (SUMS <= MOST_SUMS) {
            tile<W, ROWS, 1, 0, VECTORS>(x, x_stride, panel + p * stored, num_inputs, sums, panel_stride);
        } else {
            constexpr int HALF = VECTORS / 2;
            tile<W, ROWS, 1, 0, HALF>(x, x_stride, panel + p * stored, num_inputs, sums, panel_stride);
            tile<W, ROWS, 1, HALF, HALF>(x, x_stride, panel + p * stored, num_inputs, sums, panel_stride);
        }
    }
}

constexpr int MOST_ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 3;  // of a tile

// All rows of x [R, K] times panels `first` to `first + count` of a matrix: sums [count][R][32], without scales or bias.
template <class W>
void products(const float* x, int num_rows, const Matrix& matrix, int first, int count, float* sums) {
    const int num_inputs = matrix.num_inputs;
    const auto* panels = static_cast<const typename W::Stored*>(matrix.panels) + int64_t(first) * num_inputs * PANEL;
    const int64_t panel_stride = int64_t(num_rows) * PANEL;
    // Full tiles and a rest, not equal ones: full ones keep the multipliers busiest, and few rows take several panels at once.
    for (int row = 0; row < num_rows; row += MOST_ROWS) {
        const int rows = std::min(MOST_ROWS, num_rows - row);
        const float* const from = x + int64_t(row) * num_inputs;
        float* const to = sums + row * PANEL;
        switch (rows) {
#define CASE(ROWS)                                                                                      \
    case ROWS:                                                                                          \
        if constexpr (ROWS <= MOST_ROWS)                                                                \
            rows_times_panels<W, ROWS>(from, num_inputs, panels, num_inputs, count, to, panel_stride); \
        break
            CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6);
            CASE(7); CASE(8); CASE(9); CASE(10); CASE(11); CASE(12);
#undef CASE
        }
    }
}

inline void products(const float* x, int num_rows, const Matrix& matrix, int first, int count, float* sums) {
    switch (matrix.format) {
        case Format::FLOAT32: return products<Float32>(x, num_rows, matrix, first, count, sums);
        case Format::BFLOAT16: return products<Bfloat16>(x, num_rows, matrix, first, count, sums);
        case Format::FLOAT16: return products<Float16>(x, num_rows, matrix, first, count, sums);
        case Format::INT8: return products<Int8>(x, num_rows, matrix, first, count, sums);
    }
}
