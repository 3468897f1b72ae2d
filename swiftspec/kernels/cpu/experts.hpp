// Mixtures of experts: which experts compute a row, and which rows an expert computes.
//
// A forward's R rows are routed to k experts each. Of the R * k routed rows, those of an expert lie together, experts and
// rows ascending.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.hpp"
#include "runs.hpp"

// The most likely experts in descending order, of equal ones the first, and their weights: probabilities among all
// experts, or among those chosen. `scores` [experts, padded to whole vectors] are the router's logits; overwritten.
inline void choose(const Model& model, float* scores, int32_t* chosen, float* shares) {
    const float all = exponentials(scores, model.num_experts);
    float among_chosen = 0.0f;
    for (int place = 0; place < model.num_active; ++place) {
        float* const best = std::max_element(scores, scores + model.num_experts);
        chosen[place] = best - scores;
        shares[place] = *best;
        among_chosen += *best;
        *best = -1.0f;
    }
    const float total = model.is_normalised ? among_chosen : all;
    for (int place = 0; place < model.num_active; ++place) shares[place] /= total;
}

// The experts of rows `first` to `last` (exclusive).
inline void route(const Step& step, const Model& model, int layer, int first, int last) {
    const Matrix& router = model.layers[layer].router;
    const int64_t num_rows = last - first, num_panels = router.num_panels(), num_active = model.num_active;
    float *const sums = scratch(num_panels * num_rows * PANEL), *const scores = scratch<1>(num_panels * PANEL);
    products(Inputs(step.normed + int64_t(first) * model.hidden_size), num_rows, router, 0, num_panels, sums);
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t p = 0; p < num_panels; ++p)
            std::copy_n(sums + (p * num_rows + row) * PANEL, PANEL, scores + p * PANEL);
        const int64_t before = (first + row) * num_active;
        choose(model, scores, step.chosen + int64_t(layer) * step.num_rows * num_active + before, step.shares + before);
    }
}

// The routed rows of a layer.
struct RoutedRows {
    struct Group {
        int expert, first, last;
        int size() const { return last - first; }
    };

    std::vector<Group> groups;    // of the experts that have rows
    std::vector<int32_t> row_of;  // [R * k]: which row of the forward each one is
    std::vector<float> share_of;  // [R * k]: the weight of its expert

    void group(const Step& step, const Model& model, int layer) {
        const int num_active = model.num_active, count = step.num_rows * num_active;
        const int32_t* const chosen = step.chosen + int64_t(layer) * count;
        next_.assign(model.num_experts, 0);
        for (int i = 0; i < count; ++i) ++next_[chosen[i]];
        groups.clear();
        int end = 0;
        for (int expert = 0; expert < model.num_experts; ++expert) {
            const int first = end;
            end += next_[expert];
            next_[expert] = first;
            if (end > first) groups.push_back({expert, first, end});
        }
        row_of.resize(count);
        share_of.resize(count);
        for (int i = 0; i < count; ++i) {
            const int place = next_[chosen[i]]++;
            row_of[place] = i / num_active;
            share_of[place] = step.shares[i];
        }
    }

    // Routed rows `first` to `last` (exclusive), from those of the forward.
    void gather(const Step& step, const Matrix& next, int first, int last) const {
        const int64_t size = next.num_inputs;
        for (int64_t routed = first; routed < last; ++routed)
            std::copy_n(step.normed + row_of[routed] * size, size, step.routed + routed * size);
        step.round(next.format, step.routed, size, first, last);
    }

   private:
    std::vector<int> next_;  // routed row of an expert's next
};
