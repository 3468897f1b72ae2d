// How weights are stored, and how they are multiplied.
//
// The outputs of W [N, K] are packed in panels of 32, padded with zeros: [N / 32][K / INPUTS][32][INPUTS]. A lane holds an
// output. A format says how many inputs of an output are neighbours (INPUTS, a group), which words of a row go with a
// group, and how a vector of weights is multiplied with one of these words, splat.
//
// In EXACT formats weights become fp32, and the words are the row's own numbers. Others multiply numbers of fewer bits
// several at a time, as processors can, and their rows are rounded before, to `Word`s.
#pragma once

#include <algorithm>

#include "vectors.hpp"

constexpr int PANEL = 32;
constexpr int VECTORS = PANEL / LANES;

// The numbers are those of swiftspec/engine/model/cpu/packer.py. BFLOAT16 and BFLOAT16_ROUNDED are stored alike.
enum class Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3, BFLOAT16_ROUNDED = 4 };

struct Float32 {
    using Stored = float;
    using Sum = Vec;
    static constexpr bool EXACT = true;
    static constexpr int INPUTS = 1;
    static constexpr int WORDS = 1;         // of a row for a group: each is multiplied with other bits of the weights
    static constexpr int BLOCK = 1 << 30;   // groups that are summed up before a sum is scaled
    static float value(Stored stored) { return stored; }
    template <int WORD>
    static Vec weights(const Stored* from) {
        return load<Vec>(from);
    }
    static Vec input(uint32_t word) { return splat(load<float>(&word)); }
    static Vec add(Vec input, Vec weights, Vec sum) { return accumulate(input, weights, sum); }
};

struct Float16 : Float32 {
    using Stored = uint16_t;
    static float value(Stored stored) {
#if defined(__F16C__)
        return _cvtsh_ss(stored);
#else
        return 0.0f * stored;
#endif
    }
    template <int WORD>
    static Vec weights(const Stored* from) {
#if defined(__AVX512F__)
        return (Vec)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));
#elif defined(__F16C__) && defined(__AVX2__)
        return (Vec)_mm256_cvtph_ps(load<__m128i>(from));
#else
        return from ? Vec{} : Vec{};  // never packed: see HAS_FLOAT16
#endif
    }
};

#if defined(__AVX512F__) || (defined(__F16C__) && defined(__AVX2__))
constexpr bool HAS_FLOAT16 = true;
#else
constexpr bool HAS_FLOAT16 = false;
#endif

// A bfloat16 is the upper half of the float32 with the same value.
struct Bfloat16 : Float32 {
    using Stored = uint16_t;
    static constexpr int INPUTS = 2, WORDS = 2;
    static float value(Stored stored) {
        const uint32_t word = uint32_t(stored) << 16;
        return load<float>(&word);
    }
    template <int WORD>
    static Vec weights(const Stored* from) {
        const WordVec words = load<WordVec>(from);
        return WORD == 0 ? (Vec)(words << 16) : (Vec)(words & 0xffff0000u);
    }
};

#if defined(__AVX512BF16__)
constexpr bool HAS_BFLOAT16_PRODUCTS = true;

// Rows are rounded to bfloat16, too; sums are fp32.
struct Bfloat16Rounded : Bfloat16 {
    static constexpr bool EXACT = false;
    static constexpr int WORDS = 1;
    template <int WORD>
    static WordVec weights(const Stored* from) {
        return load<WordVec>(from);
    }
    static WordVec input(uint32_t word) { return WordVec{} + word; }
    static Vec add(WordVec input, WordVec weights, Vec sum) {
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)input, (__m512bh)weights);
    }
    static int64_t num_words(int size) { return (size + 1) / 2; }
    static void round(const float* row, int size, uint32_t* words) {
        auto* const out = reinterpret_cast<uint16_t*>(words);
        int k = 0;
        for (; k + LANES <= size; k += LANES) {
            const __m256bh rounded = _mm512_cvtneps_pbh((__m512)load<Vec>(row + k));
            std::memcpy(out + k, &rounded, sizeof rounded);
        }
        if (k == size) return;
        float rest[LANES] = {};
        std::copy(row + k, row + size, rest);
        const __m256bh rounded = _mm512_cvtneps_pbh((__m512)load<Vec>(rest));
        std::memcpy(out + k, &rounded, (size - k + 1) / 2 * 4);
    }
};
#else
constexpr bool HAS_BFLOAT16_PRODUCTS = false;
using Bfloat16Rounded = Bfloat16;  // never packed
#endif

// Weights are int8 plus 128. Of a row, each BLOCK of inputs is rounded to int8 with a scale of its own; sums are exact.
struct Int8 {
    using Stored = uint8_t;
    using Sum = IntVec;
    static constexpr bool EXACT = false;
    static constexpr int OFFSET = 128, LARGEST = 127;
    static constexpr int INPUTS = 4;
    static constexpr int BLOCK_INPUTS = 128, BLOCK = BLOCK_INPUTS / INPUTS;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    static constexpr int WORDS = 1;  // four int8
#elif defined(__AVX2__)
    static constexpr int WORDS = 2;  // two int16 each: inputs 0 and 2, and 1 and 3
#else
    static constexpr int WORDS = 4;
#endif
    template <int WORD>
    static WordVec weights(const Stored* from) {
        const WordVec words = load<WordVec>(from);
        if constexpr (WORDS == 1) return words;
        if constexpr (WORDS == 2) return WORD == 0 ? words & 0x00ff00ffu : words >> 8 & 0x00ff00ffu;
        return words >> 8 * WORD & 0xffu;
    }
    static WordVec input(uint32_t word) { return WordVec{} + word; }
    static IntVec add(WordVec input, WordVec weights, IntVec sum) {
#if defined(__AVX512VNNI__)
        return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)input);
#elif defined(__AVXVNNI__)
        return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)input);
#elif defined(__AVX2__)
        const __m256i products = _mm256_madd_epi16((__m256i)weights, (__m256i)input);
        asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));  // as `accumulate`
        return sum;
#else
        return sum + (IntVec)weights * (IntVec)input;
#endif
    }

    // A rounded row: its words, then for each block a scale and the sum that undoes the weights' offset.
    static int num_blocks(int size) { return (size + BLOCK_INPUTS - 1) / BLOCK_INPUTS; }
    static int64_t first_block(int size) { return int64_t(size + INPUTS - 1) / INPUTS * WORDS; }
    static int64_t num_words(int size) { return first_block(size) + 2 * num_blocks(size); }
    static void round(const float* row, int size, uint32_t* words) {
        uint32_t* const blocks = words + first_block(size);
        for (int block = 0; block < num_blocks(size); ++block) {
            const int first = block * BLOCK_INPUTS, count = std::min(BLOCK_INPUTS, size - first);
            float part[BLOCK_INPUTS] = {};
            std::copy_n(row + first, count, part);
            int32_t numbers[BLOCK_INPUTS];
            const float scale = to_integers(part, numbers);
            int32_t total = 0;
            for (const int32_t number : numbers) total += number;
            const int32_t start = -OFFSET * total;
            std::memcpy(blocks + 2 * block, &scale, 4);
            std::memcpy(blocks + 2 * block + 1, &start, 4);
            const int num_groups = (count + INPUTS - 1) / INPUTS;
            for (int group = 0; group < num_groups; ++group)
                put(numbers + group * INPUTS, words + (int64_t(block) * BLOCK + group) * WORDS);
        }
    }

   private:
    // Rounds a block to integers; returns what they are to be multiplied with.
    static float to_integers(const float* part, int32_t* numbers) {
        float sizes[BLOCK_INPUTS];
        for (int k = 0; k < BLOCK_INPUTS; ++k) sizes[k] = std::fabs(part[k]);
        const float most = greatest(sizes, BLOCK_INPUTS);
        const float inverse = most > 0.0f ? LARGEST / most : 0.0f;
        for (int k = 0; k < BLOCK_INPUTS; k += LANES) {
            const Vec nearest = load<Vec>(part + k) * inverse + 12582912.0f;  // 1.5 * 2^23: the low bits are the nearest
            const IntVec integers = (IntVec)nearest - 0x4b400000;
            std::memcpy(numbers + k, &integers, sizeof integers);
        }
        return most / LARGEST;
    }

    static void put(const int32_t* numbers, uint32_t* words) {
        for (int word = 0; word < WORDS; ++word) {
            const auto bits = [&](int input) { return uint32_t(numbers[input]); };
            if (WORDS == 1)
                words[0] = (bits(0) & 0xff) | (bits(1) & 0xff) << 8 | (bits(2) & 0xff) << 16 | bits(3) << 24;
            else if (WORDS == 2)
                words[word] = (bits(word) & 0xffff) | bits(word + 2) << 16;
            else
                words[word] = bits(word);
        }
    }
};

// Calls `use` with the format as a type.
template <class Use>
inline void with_format(Format format, const Use& use) {
    switch (format) {
        case Format::FLOAT32: return use(Float32());
        case Format::BFLOAT16: return use(Bfloat16());
        case Format::FLOAT16: return use(Float16());
        case Format::INT8: return use(Int8());
        case Format::BFLOAT16_ROUNDED: return use(Bfloat16Rounded());
    }
}

inline bool rounds_rows(Format format) {
    return format == Format::INT8 || (format == Format::BFLOAT16_ROUNDED && HAS_BFLOAT16_PRODUCTS);
}

// A row as a format that rounds wants it.
inline void round_row(Format format, const float* row, int size, uint32_t* words) {
    with_format(format, [&](auto w) {
        using W = decltype(w);
        if constexpr (!W::EXACT) W::round(row, size, words);
    });
}
