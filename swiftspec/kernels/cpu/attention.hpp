// Attention of a few rows of one sequence over its cache.
//
// Keys lie transposed in blocks, [slots / KEY_BLOCK][D][KEY_BLOCK], values row by row, [slots][D]. The slots that a row
// sees come in the order of their positions, wherever they lie: the result is the same, to the last bit, whether a token
// is verified in a tree or decoded alone.
#pragma once

#include <algorithm>

#include "vectors.hpp"

constexpr int KEY_BLOCK = 16;  // as in swiftspec/engine/model/cpu/kernels.py

inline float dot(const float* a, const float* b, int size) {
    Vec total{};
    int d = 0;
    for (; d + LANES <= size; d += LANES) total = multiply_add(load<Vec>(a + d), load<Vec>(b + d), total);
    float result = sum(total);
    for (; d < size; ++d) result += a[d] * b[d];
    return result;
}

// Replaces `count` scores, and what pads them to whole vectors, by e^(score - largest); returns their sum.
inline float exponentials(float* scores, int count) {
    const int padded = (count + LANES - 1) / LANES * LANES;
    std::fill(scores + count, scores + padded, -INFINITY);
    const float largest = greatest(scores, padded);
    Vec total{};
    for (int s = 0; s < padded; s += LANES) {
        const Vec weights = exponential(load<Vec>(scores + s) - largest);
        store(scores + s, weights);
        total += weights;
    }
    return sum(total);
}

// Dimensions `from` to `from + VECS * LANES` of QUERIES outputs: += weights[i] * value(i), i ascending.
template <int QUERIES, int VECS, class Value>
inline void mix_part(const float* const* weights, const Value& value, int count, float* const* outs, int from) {
    Vec sums[QUERIES][VECS];
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < VECS; ++v) sums[q][v] = load<Vec>(outs[q] + from + v * LANES);
    for (int i = 0; i < count; ++i) {
        const float* const at = value(i) + from;
        Vec parts[VECS];
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v) parts[v] = load<Vec>(at + v * LANES);
#pragma GCC unroll 4
        for (int q = 0; q < QUERIES; ++q) {
            const Vec weight = splat(weights[q][i]);
#pragma GCC unroll 4
            for (int v = 0; v < VECS; ++v) sums[q][v] = multiply_add(weight, parts[v], sums[q][v]);
        }
    }
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < VECS; ++v) store(outs[q] + from + v * LANES, sums[q][v]);
}

template <int QUERIES, class Value>
inline void mix(const float* const* weights, const Value& value, int count, int size, float* const* outs) {
    constexpr int VECS = QUERIES == 1 || LANES == 16 ? 4 : 2;  // as many sums as there are registers for
    int d = 0;
    for (; d + VECS * LANES <= size; d += VECS * LANES) mix_part<QUERIES, VECS>(weights, value, count, outs, d);
    for (; d + LANES <= size; d += LANES) mix_part<QUERIES, 1>(weights, value, count, outs, d);
    for (; d < size; ++d)
        for (int i = 0; i < count; ++i)
            for (int q = 0; q < QUERIES; ++q) outs[q][d] += weights[q][i] * value(i)[d];
}

// What a row sees: slots 0 to `num_first` (exclusive), and some later ones, ascending.
struct Query {
    const float* query;  // [size], scaled
    int num_first;
    const int32_t* others;
    int num_others;
    float* scores;  // room for a score of each slot, and a block more
    float* out;     // [size]

    int count() const { return num_first + num_others; }
    int end() const { return num_others ? others[num_others - 1] + 1 : num_first; }
};

// The query heads of one or a few rows that share a key/value head, over one sequence's slots.
//
// Keys, and the values that all queries see, are read once for several queries.
struct Attention {
    const float *keys, *values;
    int size;

    static constexpr int MOST_QUERIES = 64;

    void run(const Query* queries, int num_queries) const {
        int end = 0, num_shared = queries->num_first;
        for (int q = 0; q < num_queries; ++q) {
            end = std::max(end, queries[q].end());
            num_shared = std::min(num_shared, queries[q].num_first);
        }
        const int num_blocks = (end + KEY_BLOCK - 1) / KEY_BLOCK;
        for (int first = 0; first < num_blocks; first += NEAR / KEY_BLOCK)
            score(queries, num_queries, first, std::min(num_blocks, first + NEAR / KEY_BLOCK));
        float totals[MOST_QUERIES];
        for (int q = 0; q < num_queries; ++q) {
            const Query& query = queries[q];
            for (int i = 0; i < query.num_others; ++i)
                query.scores[query.num_first + i] = query.scores[query.others[i]];
            totals[q] = exponentials(query.scores, query.count());
            std::fill_n(query.out, size, 0.0f);
        }
        for (int first = 0; first < num_shared; first += NEAR) {
            const int last = std::min(num_shared, first + NEAR);
            in_groups(num_queries, [&](auto count, int q) { mix_slots<decltype(count)::value>(queries + q, first, last); });
        }
        for (int q = 0; q < num_queries; ++q) {
            mix_slots<1>(queries + q, num_shared, queries[q].num_first);
            mix_others(queries[q]);
            for (int d = 0; d < size; ++d) queries[q].out[d] *= 1.0f / totals[q];
        }
    }

   private:
    static constexpr int NEAR = 256;  // slots whose keys or values stay in a cache for all queries
    static constexpr int MOST_BLOCKS = LANES == 16 ? 8 : 4;  // whose scores are summed up at once
    static constexpr int MOST_SCORE_VECS = LANES == 16 ? 16 : 8;
    static constexpr int LINES_AHEAD = 64;

    // Scores of the slots of blocks `first` to `last` (exclusive), seen or not.
    void score(const Query* queries, int num_queries, int first, int last) const {
        in_groups(num_queries, [&](auto count, int q) {
            constexpr int COUNT = decltype(count)::value;
            constexpr int BLOCKS = std::clamp(MOST_SCORE_VECS * LANES / KEY_BLOCK / COUNT, 1, MOST_BLOCKS);
            q ? score<COUNT, BLOCKS, false>(queries + q, first, last) : score<COUNT, BLOCKS, true>(queries, first, last);
        });
    }

    // Calls `use(how many, first)` for groups of queries that are computed together.
    template <class Use>
    static void in_groups(int num_queries, const Use& use) {
        int q = 0;
        for (; q + 4 <= num_queries; q += 4) use(std::integral_constant<int, 4>(), q);
        for (; q + 2 <= num_queries; q += 2) use(std::integral_constant<int, 2>(), q);
        if (q < num_queries) use(std::integral_constant<int, 1>(), q);
    }

    template <int COUNT, int BLOCKS, bool IS_FIRST>
    void score(const Query* queries, int first, int last) const {
        for (; first + BLOCKS <= last; first += BLOCKS) score_blocks<COUNT, BLOCKS, IS_FIRST>(queries, first);
        if constexpr (BLOCKS > 1) score<COUNT, BLOCKS / 2, IS_FIRST>(queries, first, last);
    }

    // Each slot's products are summed up in the order of the dimensions.
    template <int COUNT, int NUM_BLOCKS, bool IS_FIRST>
    void score_blocks(const Query* queries, int block) const {
        constexpr int VECS = KEY_BLOCK / LANES;
        const int64_t stride = int64_t(size) * KEY_BLOCK;
        const float* const from = keys + block * stride;
        Vec sums[COUNT][NUM_BLOCKS * VECS] = {};
        for (int d = 0; d < size; ++d) {
            Vec parts[NUM_BLOCKS * VECS];
#pragma GCC unroll 8
            for (int b = 0; b < NUM_BLOCKS; ++b) {
                const float* const key = from + b * stride + d * KEY_BLOCK;
                // A decode step reads the cache once and waits for memory otherwise.
                if (IS_FIRST) {
                    __builtin_prefetch(key + LINES_AHEAD * KEY_BLOCK, 0, 2);
                    __builtin_prefetch(values + (key - keys), 0, 2);
                }
#pragma GCC unroll 4
                for (int v = 0; v < VECS; ++v) parts[b * VECS + v] = load<Vec>(key + v * LANES);
            }
#pragma GCC unroll 4
            for (int q = 0; q < COUNT; ++q) {
                const Vec part = splat(queries[q].query[d]);
#pragma GCC unroll 16
                for (int v = 0; v < NUM_BLOCKS * VECS; ++v) sums[q][v] = multiply_add(part, parts[v], sums[q][v]);
            }
        }
        for (int q = 0; q < COUNT; ++q)
            for (int v = 0; v < NUM_BLOCKS * VECS; ++v)
                store(queries[q].scores + block * KEY_BLOCK + v * LANES, sums[q][v]);
    }

    template <int COUNT>
    void mix_slots(const Query* queries, int first, int last) const {
        const float* weights[COUNT];
        float* outs[COUNT];
        for (int q = 0; q < COUNT; ++q) {
            weights[q] = queries[q].scores + first;
            outs[q] = queries[q].out;
        }
        const float* const from = values + int64_t(first) * size;
        const int64_t stride = size;
        mix<COUNT>(weights, [=](int i) { return from + i * stride; }, last - first, size, outs);
    }

    void mix_others(const Query& query) const {
        const float* const weights = query.scores + query.num_first;
        const auto value = [&](int i) { return values + int64_t(query.others[i]) * size; };
        mix<1>(&weights, value, query.num_others, size, &query.out);
    }
};
