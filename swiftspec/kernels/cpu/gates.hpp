// Gated rows: silu(gate) * up, of outputs whose panels of gates and of ups take turns.
#pragma once

#include <algorithm>

#include "linear.hpp"

// Takes the outputs of a task as `multiply` puts them.
struct Gates {
    float* out;  // [R, size]
    int size;
    const float* sums = nullptr;  // of the panel before: [rows from `first` on][32]
    int first = 0;

    Gates(float* out, int size) : out(out), size(size) {}

    void put(int row, int output, float* ups) {
        const int panel = output / PANEL;
        if (panel % 2 == 0) {
            if (!sums || ups != sums + int64_t(row - first) * PANEL) sums = ups, first = row;  // the first of its rows
            return;
        }
        for (int n = 0; n < PANEL; n += LANES) {
            const Vec gate = load<Vec>(sums + (row - first) * PANEL + n);
            store(ups + n, gate / (1.0f + exponential(-gate)) * load<Vec>(ups + n));
        }
        const int neuron = panel / 2 * PANEL, width = std::min(PANEL, size - neuron);
        std::copy_n(ups, width, out + int64_t(row) * size + neuron);
    }
};
