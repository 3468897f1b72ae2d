// The most likely tokens of a row of logits, and their log-probabilities.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.hpp"

// log of the sum of e^logit. A NaN makes it one.
inline float log_sum(const float* logits, int num_tokens) {
    Vec largest_of_lanes = splat(-INFINITY);
    int token = 0;
    for (; token + LANES <= num_tokens; token += LANES) {
        const Vec part = load<Vec>(logits + token);
        largest_of_lanes = part > largest_of_lanes ? part : largest_of_lanes;
    }
    float largest = -INFINITY;
    for (int lane = 0; lane < LANES; ++lane) largest = std::max(largest, largest_of_lanes[lane]);
    for (int rest = token; rest < num_tokens; ++rest) largest = std::max(largest, logits[rest]);
    Vec totals{};
    for (token = 0; token + LANES <= num_tokens; token += LANES)
        totals += exponential(load<Vec>(logits + token) - largest);
    float total = sum(totals);
    for (; token < num_tokens; ++token) total += std::exp(logits[token] - largest);
    return largest + std::log(total);
}

// scores [num_tokens]: logits / temperature + noise. The first of the largest is returned; 0 if all are NaN.
inline int32_t add_noise(const float* logits, const float* noise, float temperature, int num_tokens, float* scores) {
    Vec largest_of_lanes = splat(-INFINITY);
    int token = 0;
    for (; token + LANES <= num_tokens; token += LANES) {
        const Vec part = load<Vec>(logits + token) / temperature + load<Vec>(noise + token);
        largest_of_lanes = part > largest_of_lanes ? part : largest_of_lanes;
        store(scores + token, part);
    }
    float largest = -INFINITY;
    for (int lane = 0; lane < LANES; ++lane) largest = std::max(largest, largest_of_lanes[lane]);
    for (; token < num_tokens; ++token) {
        scores[token] = logits[token] / temperature + noise[token];
        largest = std::max(largest, scores[token]);
    }
    const float* first = std::find(scores, scores + num_tokens, largest);
    return first == scores + num_tokens ? 0 : first - scores;
}

// The `k` most likely of at least `k` tokens, in descending order; of equal ones the first.
inline void top_candidates(const float* logits, int num_tokens, int k, int32_t* tokens, float* log_probs) {
    int held = 0;
    const auto offer = [&](int token) {
        const float logit = logits[token];
        if (held == k && !(logit > log_probs[k - 1])) return;
        int place = held < k ? held++ : k - 1;
        for (; place > 0 && logit > log_probs[place - 1]; --place) {
            log_probs[place] = log_probs[place - 1];
            tokens[place] = tokens[place - 1];
        }
        log_probs[place] = logit;
        tokens[place] = token;
    };
    int token = 0;
    for (; token < k; ++token) offer(token);
    for (; token + LANES <= num_tokens; token += LANES) {
        const IntVec is_above = load<Vec>(logits + token) > log_probs[k - 1];
        int any = 0;
        for (int lane = 0; lane < LANES; ++lane) any |= is_above[lane];
        if (any)
            for (int lane = 0; lane < LANES; ++lane) offer(token + lane);
    }
    for (; token < num_tokens; ++token) offer(token);
    const float norm = log_sum(logits, num_tokens);
    for (int place = 0; place < k; ++place) log_probs[place] -= norm;
}
