// Vectors of fp32 in GCC's portable notation: as wide as the instruction set that this file is compiled for.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef uint32_t WordVec __attribute__((vector_size(LANES * 4)));

template <class T>
inline T load(const void* source) {
    T value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

inline void store(float* target, Vec value) { std::memcpy(target, &value, sizeof value); }
inline Vec splat(float value) { return value - Vec{}; }  // a sum with 0 would not be folded: it changes -0

// Halves of each group of GROUP lanes are added: half as many lanes for each group, those of `a` before those of `b`.
template <int GROUP, int... LANE>
inline Vec add_halves(Vec a, Vec b, std::integer_sequence<int, LANE...>) {
    constexpr auto source = [](int lane) {
        const int within = lane % (LANES / 2), half = GROUP / 2;
        return (lane < LANES / 2 ? 0 : LANES) + within / half * GROUP + within % half;
    };
    return __builtin_shufflevector(a, b, source(LANE)...) + __builtin_shufflevector(a, b, source(LANE) + GROUP / 2 ...);
}

// The sum of each vector's lanes, all in the same order; `vectors` [LANES] is overwritten.
template <int GROUP = LANES>
inline Vec sums(Vec* vectors) {
    for (int v = 0; v < GROUP / 2; ++v)
        vectors[v] = add_halves<GROUP>(vectors[2 * v], vectors[2 * v + 1], std::make_integer_sequence<int, LANES>());
    if constexpr (GROUP == 2) {
        return vectors[0];
    } else {
        return sums<GROUP / 2>(vectors);
    }
}

inline float sum(Vec value) {
    Vec vectors[LANES] = {value};
    return sums(vectors)[0];
}

// e^x with a relative error of about 1e-7; 0 below -87, e^88 above 88 (Cody and Waite's reduction, degree 6).
inline Vec exponential(Vec x) {
    const Vec lowest = splat(-87.0f), highest = splat(88.0f);
    const IntVec vanishes = x < lowest;
    x = vanishes ? lowest : x;
    x = x > highest ? highest : x;
    const Vec shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the nearest integer
    const Vec turns = shifted - 12582912.0f;
    const Vec rest = (x - turns * 0.693359375f) + turns * 2.12194440e-4f;
    Vec series = splat(1.9875691500e-4f);
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    const IntVec exponent = (IntVec)shifted << 23;  // what lies above the exponent's bits is shifted out
    const Vec result = (Vec)((IntVec)series + exponent);
    return vanishes ? Vec{} : result;
}
