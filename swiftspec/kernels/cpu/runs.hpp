// Products of rows that belong to several models: neighbours with the same weights are multiplied together.
#pragma once

#include <vector>

#include "model.hpp"

// Room for a task's sums, of which it may need two; a thread keeps it.
template <int NUMBER = 0>
float* scratch(size_t size) {
    thread_local std::vector<float> room;
    if (room.size() < size) room.resize(size);
    return room.data();
}

constexpr int PANELS_PER_TASK = PANELS_AT_ONCE;
static_assert(PANELS_PER_TASK % 2 == 0);  // gates and their ups are in one task

inline int num_product_tasks(const Matrix& matrix) {
    return (matrix.num_panels() + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
}

template <class Add, class Put>
void multiply_block(const Matrix& matrix, const Inputs& x, int num_rows, int task, const Add& add, const Put& put) {
    const int first = task * PANELS_PER_TASK, count = std::min(PANELS_PER_TASK, matrix.num_panels() - first);
    float* const sums = scratch(size_t(count) * num_rows * PANEL);
    products(x, num_rows, matrix, first, count, sums);
    const auto each = [&](const auto& use) {
        for (int p = 0; p < count; ++p) {
            const int output = (first + p) * PANEL, width = std::min(PANEL, matrix.num_outputs - output);
            for (int row = 0; row < num_rows; ++row) use(row, output, sums + (size_t(p) * num_rows + row) * PANEL, width);
        }
    };
    if (matrix.scales)
        each([&](int, int output, float* result, int width) {
            for (int n = 0; n < width; ++n) result[n] *= matrix.scales[output + n];
        });
    if (matrix.bias)
        each([&](int, int output, float* result, int width) {
            for (int n = 0; n < width; ++n) result[n] += matrix.bias[output + n];
        });
    add(first, count, sums);
    each(put);
}

constexpr int ROWS_AT_ONCE = 8 * MOST_ROWS;  // whose sums stay in a cache until they are put somewhere

// A task of y = x W^T. For some rows at a time calls `add(first row, rows, first panel, panels, sums [panels][rows][32])`,
// which may add to the sums, and then `put(row, first output, its 32 sums, how many of them count)`.
template <class Add, class Put>
void multiply(const Matrix& matrix, const Inputs& x, int num_rows, int task, const Add& add, const Put& put) {
    for (int first = 0; first < num_rows; first += ROWS_AT_ONCE) {
        const int rows = std::min(ROWS_AT_ONCE, num_rows - first);
        multiply_block(
            matrix, x.from(first, matrix.num_inputs), rows, task,
            [&](int first_panel, int num_panels, float* sums) { add(first, rows, first_panel, num_panels, sums); },
            [&](int row, int output, float* sums, int width) { put(first + row, output, sums, width); });
    }
}

struct NothingToAdd {
    void operator()(int, int, int, int, float*) const {}
};

// Neighbouring rows of one model.
struct Run {
    const Model* model;
    int first, last;
};

// `num_rows_of(sequence)` says how many rows each sequence has.
template <class NumRowsOf>
std::vector<Run> runs_of(const Step& step, const NumRowsOf& num_rows_of) {
    std::vector<Run> runs;
    int end = 0;
    for (int s = 0; s < step.num_sequences; ++s) {
        const SequenceRows& sequence = step.sequences[s];
        const int first = end;
        end += num_rows_of(sequence);
        if (!runs.empty() && runs.back().model == sequence.model) {
            runs.back().last = end;
        } else {
            runs.push_back({sequence.model, first, end});
        }
    }
    return runs;
}

inline bool same_weights(const Matrix& a, const Matrix& b) {
    return a.panels == b.panels && a.scales == b.scales && a.bias == b.bias;
}

// Calls `use(matrix, first run, end)` for neighbouring runs that are multiplied by the same weights, which are those of
// `matrix_of(model)`.
template <class MatrixOf, class Use>
void each_piece(const std::vector<Run>& runs, const MatrixOf& matrix_of, const Use& use) {
    const Run *run = runs.data(), *const end = run + runs.size();
    while (run != end) {
        const Run* const first = run++;
        const Matrix& matrix = matrix_of(*first->model);
        while (run != end && same_weights(matrix, matrix_of(*run->model))) ++run;
        use(matrix, first, run);
    }
}

template <class MatrixOf>
int num_piece_tasks(const std::vector<Run>& runs, const MatrixOf& matrix_of) {
    int count = 0;
    each_piece(runs, matrix_of, [&](const Matrix& matrix, const Run*, const Run*) { count += num_product_tasks(matrix); });
    return count;
}

// Second products of the adapters in some runs, added to sums [panels][num_rows, from `first_row` on][32].
template <class MatrixOf>
void add_adapters(const Step& step, const Run* first_run, const Run* end_run, const MatrixOf& matrix_of, int first_row,
                  int num_rows, int first_panel, int num_panels, float* sums) {
    for (const Run* run = first_run; run != end_run; ++run) {
        const Adapter* const adapter = matrix_of(*run->model).adapter;
        const int first = std::max(run->first, first_row);
        const int rows = std::min(run->last, first_row + num_rows) - first;
        if (!adapter || rows <= 0) continue;
        float* const added = scratch<1>(size_t(num_panels) * rows * PANEL);
        const float* const shrunk = step.shrunk + int64_t(first) * step.widest_adapter;
        products(Inputs(shrunk), rows, adapter->up, first_panel, num_panels, added);
        for (int p = 0; p < num_panels; ++p) {
            float* const to = sums + (size_t(p) * num_rows + first - first_row) * PANEL;
            for (int n = 0; n < rows * PANEL; ++n) to[n] += added[size_t(p) * rows * PANEL + n];
        }
    }
}

// The first product of a run's adapter, if it has one.
template <class MatrixOf>
void shrink(const Step& step, const Run& run, const MatrixOf& matrix_of, const float* x) {
    const Adapter* const adapter = matrix_of(*run.model).adapter;
    if (!adapter) return;
    const Matrix& matrix = adapter->down;  // which is exact
    float* const shrunk = step.shrunk + int64_t(run.first) * step.widest_adapter;
    for (int task = 0; task < num_product_tasks(matrix); ++task)
        multiply(
            matrix, Inputs(x + int64_t(run.first) * matrix.num_inputs), run.last - run.first, task, NothingToAdd(),
            [&](int row, int output, float* sums, int width) {
                std::copy_n(sums, width, shrunk + int64_t(row) * matrix.num_outputs + output);
            });
}

// A task of the products of all runs: rows x [R, K], and `put` as of `multiply`, with the rows of x.
template <class MatrixOf, class Put>
void multiply_pieces(const Step& step, const std::vector<Run>& runs, const MatrixOf& matrix_of, const float* x, int task,
                     const Put& put) {
    const Inputs inputs = step.inputs(x);
    each_piece(runs, matrix_of, [&](const Matrix& matrix, const Run* first_run, const Run* end_run) {
        const int num_tasks = num_product_tasks(matrix), within = task;
        task -= num_tasks;
        if (within < 0 || within >= num_tasks) return;
        const int first = first_run->first, num_rows = end_run[-1].last - first;
        multiply(
            matrix, inputs.from(first, matrix.num_inputs), num_rows, within,
            [&](int first_row, int rows, int first_panel, int num_panels, float* sums) {
                if (step.widest_adapter)
                    add_adapters(step, first_run, end_run, matrix_of, first + first_row, rows, first_panel, num_panels,
                                 sums);
            },
            [&](int row, int output, float* sums, int width) { put(first + row, output, sums, width); });
    });
}
