// Attention of a few rows of one sequence over its cache.
//
// The slots that a row sees come in the order of their positions, wherever they lie: the result is the same, to the
// last bit, whether a token is verified in a tree or decoded alone.
#pragma once

#include <algorithm>

#include "vectors.hpp"

inline float dot(const float* a, const float* b, int size) {
    Vec total{};
    int d = 0;
    for (; d + LANES <= size; d += LANES) total = multiply_add(load<Vec>(a + d), load<Vec>(b + d), total);
    float result = sum(total);
    for (; d < size; ++d) result += a[d] * b[d];
    return result;
}

// scores[i] = query . keys[i] for LANES keys, in the same order of additions for each.
inline Vec score(const float* query, const float* const* keys, int size) {
    Vec products[LANES] = {};
    int d = 0;
    for (; d + LANES <= size; d += LANES) {
        const Vec part = load<Vec>(query + d);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) products[i] = multiply_add(part, load<Vec>(keys[i] + d), products[i]);
    }
    Vec scores = sums(products);
    for (; d < size; ++d)
        for (int i = 0; i < LANES; ++i) scores[i] += query[d] * keys[i][d];
    return scores;
}

// Replaces `count` scores, and what pads them to whole vectors, by e^(score - largest); returns their sum.
inline float exponentials(float* scores, int count) {
    float largest = -INFINITY;
    for (int s = 0; s < count; ++s) largest = std::max(largest, scores[s]);
    const int padded = (count + LANES - 1) / LANES * LANES;
    std::fill(scores + count, scores + padded, -INFINITY);
    Vec total{};
    for (int s = 0; s < padded; s += LANES) {
        const Vec weights = exponential(load<Vec>(scores + s) - largest);
        store(scores + s, weights);
        total += weights;
    }
    return sum(total);
}

// Dimensions `from` to `from + VECS * LANES` of QUERIES outputs: += weights[slot] * values[slot], slots ascending.
template <int QUERIES, int VECS>
inline void mix_part(const float* const* weights, const float* values, const int32_t* slots, int count, int size,
                     float* const* outs, int from) {
    Vec sums[QUERIES][VECS];
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < VECS; ++v) sums[q][v] = load<Vec>(outs[q] + from + v * LANES);
    for (int s = 0; s < count; ++s) {
        const float* const value = values + int64_t(slots[s]) * size + from;
        Vec parts[VECS];
#pragma GCC unroll 4
        for (int v = 0; v < VECS; ++v) parts[v] = load<Vec>(value + v * LANES);
#pragma GCC unroll 4
        for (int q = 0; q < QUERIES; ++q) {
            const Vec weight = splat(weights[q][s]);
#pragma GCC unroll 4
            for (int v = 0; v < VECS; ++v) sums[q][v] = multiply_add(weight, parts[v], sums[q][v]);
        }
    }
    for (int q = 0; q < QUERIES; ++q)
        for (int v = 0; v < VECS; ++v) store(outs[q] + from + v * LANES, sums[q][v]);
}

template <int QUERIES>
inline void mix(const float* const* weights, const float* values, const int32_t* slots, int count, int size,
                float* const* outs) {
    constexpr int VECS = QUERIES == 1 || LANES == 16 ? 4 : 2;  // as many sums as there are registers for
    int d = 0;
    for (; d + VECS * LANES <= size; d += VECS * LANES)
        mix_part<QUERIES, VECS>(weights, values, slots, count, size, outs, d);
    for (; d + LANES <= size; d += LANES) mix_part<QUERIES, 1>(weights, values, slots, count, size, outs, d);
    for (; d < size; ++d)
        for (int s = 0; s < count; ++s)
            for (int q = 0; q < QUERIES; ++q) outs[q][d] += weights[q][s] * values[int64_t(slots[s]) * size + d];
}

// The query heads of one or a few rows that share a key/value head, over one sequence's slots.
//
// The slots with which all lists begin are read once for several queries.
struct Attention {
    const float *keys, *values;  // [slots, size]
    int size;

    struct Query {
        const float* query;    // [size], scaled
        const int32_t* slots;  // ascending in position
        int count;
        float* scores;  // [count + LANES]
        float* out;     // [size]
    };

    void run(const Query* queries, int num_queries) const {
        const int num_shared = common_start(queries, num_queries);
        const int whole = num_shared / LANES * LANES;
        for (int s = 0; s < whole; s += LANES) score_slots(queries, num_queries, s, LANES);
        for (int q = 0; q < num_queries; ++q)
            for (int s = whole; s < queries[q].count; s += LANES)
                score_slots(queries + q, 1, s, std::min(LANES, queries[q].count - s));
        float totals[MOST_QUERIES];
        for (int q = 0; q < num_queries; ++q) {
            totals[q] = exponentials(queries[q].scores, queries[q].count);
            std::fill_n(queries[q].out, size, 0.0f);
        }
        int q = 0;
        for (; q + TOGETHER <= num_queries; q += TOGETHER) mix_slots<TOGETHER>(queries + q, 0, num_shared);
        for (; q < num_queries; ++q) mix_slots<1>(queries + q, 0, num_shared);
        for (q = 0; q < num_queries; ++q) {
            mix_slots<1>(queries + q, num_shared, queries[q].count);
            for (int d = 0; d < size; ++d) queries[q].out[d] *= 1.0f / totals[q];
        }
    }

    static constexpr int MOST_QUERIES = 64;

   private:
    static constexpr int TOGETHER = 4;
    static constexpr int SLOTS_AHEAD = 2 * LANES;

    // Into the second-level cache: a decode step reads the KV cache once and waits for memory otherwise.
    void prefetch(const float* rows, int slot) const {
        const char* const row = reinterpret_cast<const char*>(rows + int64_t(slot) * size);
        for (int byte = 0; byte < size * int(sizeof(float)); byte += 64) __builtin_prefetch(row + byte, 0, 2);
    }

    static int common_start(const Query* queries, int num_queries) {
        int length = queries->count;
        for (int q = 1; q < num_queries; ++q) {
            length = std::min(length, queries[q].count);
            if (queries[q].slots == queries->slots) continue;
            length = std::mismatch(queries->slots, queries->slots + length, queries[q].slots).first - queries->slots;
        }
        return length;
    }

    void score_slots(const Query* queries, int num_queries, int first, int count) const {
        for (int s = first; s < first + count; ++s) {
            prefetch(values, queries->slots[s]);
            if (s + SLOTS_AHEAD < queries->count) prefetch(keys, queries->slots[s + SLOTS_AHEAD]);
        }
        const float* key[LANES];
        for (int i = 0; i < LANES; ++i)
            key[i] = keys + int64_t(queries->slots[first + std::min(i, count - 1)]) * size;
        for (int q = 0; q < num_queries; ++q) store(queries[q].scores + first, score(queries[q].query, key, size));
    }

    template <int QUERIES>
    void mix_slots(const Query* queries, int first, int last) const {
        const float* weights[QUERIES];
        float* outs[QUERIES];
        for (int q = 0; q < QUERIES; ++q) {
            weights[q] = queries[q].scores + first;
            outs[q] = queries[q].out;
        }
        mix<QUERIES>(weights, values, queries->slots + first, last - first, size, outs);
    }
};
