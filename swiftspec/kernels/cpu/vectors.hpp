// Vectors of fp32 in GCC's portable notation: as wide as the instruction set that this file is compiled for.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

#define INLINE inline __attribute__((always_inline))  // where registers hold what functions share

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef uint32_t WordVec __attribute__((vector_size(LANES * 4)));

typedef uint32_t Word __attribute__((may_alias));  // of a row: its own floats, or what they were rounded to

template <class T>
inline T load(const void* source) {
    T value;
    std::memcpy(&value, source, sizeof value);
    return value;
}

inline void store(float* target, Vec value) { std::memcpy(target, &value, sizeof value); }
inline Vec splat(float value) { return value - Vec{}; }  // a sum with 0 would not be folded: it changes -0

// sum + a * b, rounded once where the processor can. Said explicitly: which products a compiler fuses by itself depends on
// the loop they are in and on the processor it tunes for, and then a row's result would depend on how many rows there are.
// So the kernels are compiled with -ffp-contract=off.
inline Vec multiply_add(Vec a, Vec b, Vec sum) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (Vec)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}

// The same into the sum's own register. Compilers may take another one for the result, move it, and, where as many sums
// are in progress as there are registers, wait for memory in every round.
INLINE Vec accumulate(Vec a, Vec b, Vec sum) {
#if defined(__AVX512F__)
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#elif defined(__AVX2__) && defined(__FMA__)
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
#else
    return multiply_add(a, b, sum);
#endif
}

// Of at least one number; in whole vectors.
inline float greatest(const float* numbers, int count) {
    Vec most = load<Vec>(numbers);
    for (int s = LANES; s < count; s += LANES) {
        const Vec others = load<Vec>(numbers + s);
        most = others > most ? others : most;
    }
    float result = most[0];
    for (int lane = 1; lane < LANES; ++lane) result = std::max(result, most[lane]);
    return result;
}

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
    const auto next = [](Vec series, Vec factor, float term) { return multiply_add(series, factor, splat(term)); };
    const Vec shifted = next(x, splat(1.44269504f), 12582912.0f);  // 1.5 * 2^23: the low bits are the nearest integer
    const Vec turns = shifted - 12582912.0f;
    const Vec rest = multiply_add(turns, splat(2.12194440e-4f), multiply_add(turns, splat(-0.693359375f), x));
    Vec series = splat(1.9875691500e-4f);
    series = next(series, rest, 1.3981999507e-3f);
    series = next(series, rest, 8.3334519073e-3f);
    series = next(series, rest, 4.1665795894e-2f);
    series = next(series, rest, 1.6666665459e-1f);
    series = next(series, rest, 5.0000001201e-1f);
    series = multiply_add(series * rest, rest, rest) + 1.0f;
    const IntVec exponent = (IntVec)shifted << 23;  // what lies above the exponent's bits is shifted out
    const Vec result = (Vec)((IntVec)series + exponent);
    return vanishes ? Vec{} : result;
}
