// The layers of a Llama-type decoder for a few rows at a time: weights as stored, arithmetic in fp32.
//
// R rows of one or several sequences, H query heads, G key/value heads, J = H / G, D head dimension. Products are
// computed for all rows together, attention for each sequence.

#include <vector>

#include "attention.hpp"
#include "candidates.hpp"
#include "linear.hpp"
#include "model.hpp"
#include "workers.hpp"

namespace {

void normalise(const float* x, const float* weight, int size, float eps, float* out) {
    const float scale = 1.0f / std::sqrt(dot(x, x, size) / size + eps);
    for (int i = 0; i < size; ++i) out[i] = x[i] * scale * weight[i];
}

// Sums of a task's products; a thread keeps its room.
float* scratch(size_t size) {
    thread_local std::vector<float> room;
    if (room.size() < size) room.resize(size);
    return room.data();
}

void embed(const Model& model, int token, float* out) {
    const Matrix& head = model.head;
    const int64_t size = model.hidden_size;
    const auto copy = [&](auto format) {
        using W = decltype(format);
        const auto* const rows = static_cast<const typename W::Stored*>(model.embedding);
        const auto* const panels = static_cast<const typename W::Stored*>(head.panels);
        for (int64_t k = 0; k < size; ++k)
            out[k] = W::value(rows ? rows[token * size + k]
                                   : panels[(token / PANEL * size + k) * PANEL + W::place(token % PANEL)]);
    };
    switch (model.embedding_format) {
        case Format::FLOAT32: return copy(Float32());
        case Format::BFLOAT16: return copy(Bfloat16());
        case Format::FLOAT16: return copy(Float16());
        case Format::INT8: return;  // an embedding is never rounded
    }
}

// What a layer consists of. Stages of all layers are numbered through.
enum Stage { NORM, QKV, ROTATION, ATTENTION, OUTPUT, SECOND_NORM, GATE_UP, DOWN, STAGES_PER_LAYER };

constexpr int QUERIES_PER_TASK = 8;
constexpr int PANELS_PER_TASK = PANELS_AT_ONCE;
static_assert(PANELS_PER_TASK % 2 == 0);  // gates and their ups are in one task

int num_product_tasks(const Matrix& matrix) { return (matrix.num_panels() + PANELS_PER_TASK - 1) / PANELS_PER_TASK; }

// A task of y = x W^T: calls `put(row, first output, its 32 sums, how many of them count)`.
template <class Put>
void multiply(const Matrix& matrix, const float* x, int num_rows, int task, const Put& put) {
    const int first = task * PANELS_PER_TASK, count = std::min(PANELS_PER_TASK, matrix.num_panels() - first);
    float* const sums = scratch(size_t(count) * num_rows * PANEL);
    products(x, num_rows, matrix, first, count, sums);
    for (int p = 0; p < count; ++p) {
        const int output = (first + p) * PANEL, width = std::min(PANEL, matrix.num_outputs - output);
        for (int row = 0; row < num_rows; ++row) {
            float* const result = sums + (size_t(p) * num_rows + row) * PANEL;
            if (matrix.scales)
                for (int n = 0; n < width; ++n) result[n] *= matrix.scales[output + n];
            if (matrix.bias)
                for (int n = 0; n < width; ++n) result[n] += matrix.bias[output + n];
            put(row, output, result, width);
        }
    }
}

void normalise_rows(const Model& model, const Step& step, const float* weight, int first, int last) {
    const int size = model.hidden_size;
    for (int64_t row = first; row < last; ++row)
        normalise(step.residual + row * size, weight, size, model.norm_eps, step.normed + row * size);
}

// Norms and rotations of a few rows take less time than sharing them out.
constexpr int ROWS_PER_TASK = 16;

int num_row_tasks(int num_rows) { return (num_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK; }

// Stages `begin` to `end` (exclusive). OUTPUT and DOWN add to `target` [R, hidden]: the residual, or what a caller
// wants to add up with other ranks' first.
class Layers final : public Program {
   public:
    Layers(const Model& model, const Step& step, int begin, int end, float* target)
        : model_(model), step_(step), begin_(begin), end_(end), target_(target), blocks_(row_blocks(model, step)) {}

    int num_stages() const override { return end_ - begin_; }

    int num_tasks(int number) const override {
        const int stage = begin_ + number;
        switch (stage % STAGES_PER_LAYER) {
            case QKV: return num_product_tasks(layer(stage).qkv);
            case ATTENTION: return model_.num_kv_heads * int(blocks_.size());
            case OUTPUT: return num_product_tasks(layer(stage).output);
            case GATE_UP: return num_product_tasks(layer(stage).gate_up);
            case DOWN: return num_product_tasks(layer(stage).down);
            default: return num_row_tasks(step_.num_rows);
        }
    }

    void run_task(int number, int task) override {
        const int stage = begin_ + number;
        const Layer& held = layer(stage);
        const int first = task * ROWS_PER_TASK, last = std::min(step_.num_rows, first + ROWS_PER_TASK);
        switch (stage % STAGES_PER_LAYER) {
            case NORM: return normalise_rows(model_, step_, held.attention_norm, first, last);
            case QKV: return qkv(held, task);
            case ROTATION: return rotate_and_cache(stage, first, last);
            case ATTENTION: return attend(stage, task);
            case OUTPUT: return add(held.output, step_.attended, task);
            case SECOND_NORM: return normalise_rows(model_, step_, held.feed_forward_norm, first, last);
            case GATE_UP: return gate_up(held, task);
            default: return add(held.down, step_.gated, task);
        }
    }

   private:
    const Layer& layer(int stage) const { return model_.layers[stage / STAGES_PER_LAYER]; }

    void qkv(const Layer& held, int task) {
        multiply(held.qkv, step_.normed, step_.num_rows, task, [&](int row, int output, float* sums, int width) {
            std::copy_n(sums, width, step_.qkv + int64_t(row) * model_.qkv_size() + output);
        });
    }

    // Rotates queries and keys, scales the queries, and puts keys and values into the caches.
    void rotate_and_cache(int stage, int first, int last) {
        for (int s = 0; s < step_.num_sequences; ++s) {
            const SequenceRows& sequence = step_.sequences[s];
            const int begin = std::max(first, sequence.first_row), end = std::min(last, sequence.end_row());
            for (int row = begin; row < end; ++row) rotate_and_cache_row(stage, sequence, row);
        }
    }

    void rotate_and_cache_row(int stage, const SequenceRows& sequence, int row) {
        const int size = model_.head_dim, num_heads = model_.num_heads, num_kv_heads = model_.num_kv_heads;
        const Layer& held = layer(stage);
        const float scale = 1.0f / std::sqrt(float(size));
        float* const queries = step_.qkv + int64_t(row) * model_.qkv_size();
        float *const keys = queries + model_.query_size(), *const values = keys + num_kv_heads * size;
        const float* const turns = model_.turns + int64_t(step_.positions[row]) * size;
        const int64_t slot = int64_t(sequence.first_slot() + row - sequence.first_row) * size;
        for (int h = 0; h < num_heads; ++h) position(queries + h * size, held.query_norm, turns, scale);
        for (int g = 0; g < num_kv_heads; ++g) {
            position(keys + g * size, held.key_norm, turns, 1.0f);
            std::copy_n(keys + g * size, size, cached(stage, sequence, 0, g) + slot);
            std::copy_n(values + g * size, size, cached(stage, sequence, 1, g) + slot);
        }
    }

    void position(float* head, const float* norm, const float* turns, float scale) const {
        const int size = model_.head_dim;
        if (norm) normalise(head, norm, size, model_.norm_eps, head);
        for (int d = 0; d < size; d += 2) {
            const float real = head[d] * scale, imaginary = head[d + 1] * scale;
            head[d] = real * turns[d] - imaginary * turns[d + 1];
            head[d + 1] = real * turns[d + 1] + imaginary * turns[d];
        }
    }

    float* cached(int stage, const SequenceRows& sequence, int is_value, int group) const {
        const int64_t before = (int64_t(stage / STAGES_PER_LAYER) * 2 + is_value) * model_.num_kv_heads + group;
        return sequence.cache + before * sequence.num_slots * model_.head_dim;
    }

    // Rows of one sequence: with a key/value head, a task of attention.
    struct RowBlock {
        const SequenceRows* sequence;
        int first, last;
    };

    // In each as many rows as a task has queries for, at least one.
    static std::vector<RowBlock> row_blocks(const Model& model, const Step& step) {
        const int most_rows = std::max(1, QUERIES_PER_TASK / model.group_size());
        std::vector<RowBlock> blocks;
        for (int s = 0; s < step.num_sequences; ++s) {
            const SequenceRows& sequence = step.sequences[s];
            for (int row = sequence.first_row; row < sequence.end_row(); row += most_rows)
                blocks.push_back({&sequence, row, std::min(sequence.end_row(), row + most_rows)});
        }
        return blocks;
    }

    void attend(int stage, int task) {
        const int size = model_.head_dim, heads = model_.group_size(), group = task % model_.num_kv_heads;
        const RowBlock& block = blocks_[task / model_.num_kv_heads];
        const SequenceRows& sequence = *block.sequence;
        const int64_t room = sequence.first_slot() + sequence.num_rows + LANES;
        float* scores = scratch((block.last - block.first) * (heads + 1) * room);
        const Attention attention{cached(stage, sequence, 0, group), cached(stage, sequence, 1, group), size};
        Attention::Query queries[Attention::MOST_QUERIES];
        int count = 0;
        for (int64_t row = block.first; row < block.last; ++row) {
            auto* const slots = reinterpret_cast<int32_t*>(scores);
            const int num_slots = list_visible(sequence, row, slots);
            for (int64_t head = group * heads; head < (group + 1) * heads; ++head) {
                queries[count++] = {step_.qkv + row * model_.qkv_size() + head * size, slots, num_slots,
                                    scores += room, step_.attended + row * model_.query_size() + head * size};
                if (count < Attention::MOST_QUERIES) continue;
                attention.run(queries, count);
                count = 0;
            }
            scores += room;
        }
        if (count) attention.run(queries, count);
    }

    static int list_visible(const SequenceRows& sequence, int row, int32_t* slots) {
        int count = 0;
        const int within = row - sequence.first_row;
        const int num_before = sequence.prefix_length + (sequence.visible ? 0 : within + 1);
        for (; count < num_before; ++count) slots[count] = count;
        if (!sequence.visible) return count;
        const int num_bytes = sequence.mask_bytes();
        const uint8_t* const mask = sequence.visible + int64_t(within) * num_bytes;
        for (int byte = 0; byte < num_bytes; ++byte)
            for (unsigned left = mask[byte]; left; left &= left - 1)
                slots[count++] = sequence.prefix_length + byte * 8 + __builtin_ctz(left);
        return count;
    }

    void add(const Matrix& matrix, const float* x, int task) {
        multiply(matrix, x, step_.num_rows, task, [&](int row, int output, float* sums, int width) {
            float* const target = target_ + int64_t(row) * model_.hidden_size + output;
            for (int n = 0; n < width; ++n) target[n] += sums[n];
        });
    }

    // silu(gate) * up
    void gate_up(const Layer& held, int task) {
        const float* gates = nullptr;  // the panel before: [R][32]
        multiply(held.gate_up, step_.normed, step_.num_rows, task, [&](int row, int output, float* sums, int) {
            const int panel = output / PANEL;
            if (panel % 2 == 0) {
                if (row == 0) gates = sums;
                return;
            }
            for (int n = 0; n < PANEL; n += LANES) {
                const Vec gate = load<Vec>(gates + row * PANEL + n);
                store(sums + n, gate / (1.0f + exponential(-gate)) * load<Vec>(sums + n));
            }
            const int neuron = panel / 2 * PANEL, width = std::min(PANEL, model_.intermediate_size - neuron);
            std::copy_n(sums, width, step_.gated + int64_t(row) * model_.intermediate_size + neuron);
        });
    }

    const Model& model_;
    const Step& step_;
    const int begin_, end_;
    float* const target_;
    const std::vector<RowBlock> blocks_;
};

// The final norm and the output embedding of the rows that are to have logits.
class Head final : public Program {
   public:
    Head(const Model& model, const Step& step, float* logits) : model_(model), step_(step), logits_(logits) {
        for (int s = 0; s < step.num_sequences; ++s) {
            const SequenceRows& sequence = step.sequences[s];
            for (int left = sequence.num_logits; left > 0; --left) rows_.push_back(sequence.end_row() - left);
        }
    }

    int num_stages() const override { return 2; }
    int num_tasks(int stage) const override {
        return stage == 0 ? num_row_tasks(num_rows()) : num_product_tasks(model_.head);
    }

    void run_task(int stage, int task) override {
        if (stage == 0) return norm(task * ROWS_PER_TASK, std::min(num_rows(), (task + 1) * ROWS_PER_TASK));
        multiply(model_.head, step_.normed, num_rows(), task, [&](int row, int output, float* sums, int width) {
            std::copy_n(sums, width, logits_ + int64_t(row) * model_.head.num_outputs + output);
        });
    }

   private:
    int num_rows() const { return rows_.size(); }

    void norm(int first, int last) {
        const int64_t size = model_.hidden_size;
        for (int64_t i = first; i < last; ++i)
            normalise(step_.residual + rows_[i] * size, model_.final_norm, size, model_.norm_eps,
                      step_.normed + i * size);
    }

    const Model& model_;
    const Step& step_;
    float* const logits_;
    std::vector<int32_t> rows_;
};

}  // namespace

extern "C" {

int32_t swiftspec_lanes() { return LANES; }
int32_t swiftspec_has_float16() { return HAS_FLOAT16; }

// The residual before the first layer. Returns a row whose token or position does not exist; -1 if there is none.
int32_t swiftspec_embed(const Model* model, const Step* step) {
    for (int64_t row = 0; row < step->num_rows; ++row) {
        const int32_t token = step->tokens[row], position = step->positions[row];
        if (token < 0 || token >= model->vocab_size || position < 0 || position >= model->num_positions) return row;
        embed(*model, token, step->residual + row * model->hidden_size);
    }
    return -1;
}

// Layers `first` to `last` (exclusive), of which the residual is input and output.
void swiftspec_layers(const Model* model, const Step* step, int32_t first, int32_t last, int32_t num_threads) {
    if (first >= last) return;
    Layers layers(*model, *step, first * STAGES_PER_LAYER, last * STAGES_PER_LAYER, step->residual);
    Workers::shared().run(layers, num_threads);
}

// Half a layer, whose result is added to `update` [R, hidden].
void swiftspec_attention(const Model* model, const Step* step, int32_t layer, float* update, int32_t num_threads) {
    Layers half(*model, *step, layer * STAGES_PER_LAYER, layer * STAGES_PER_LAYER + SECOND_NORM, update);
    Workers::shared().run(half, num_threads);
}

void swiftspec_feed_forward(const Model* model, const Step* step, int32_t layer, float* update, int32_t num_threads) {
    Layers half(*model, *step, layer * STAGES_PER_LAYER + SECOND_NORM, (layer + 1) * STAGES_PER_LAYER, update);
    Workers::shared().run(half, num_threads);
}

// logits [rows, vocabulary] of the rows that are to have them, from the residual.
void swiftspec_logits(const Model* model, const Step* step, float* logits, int32_t num_threads) {
    Head head(*model, *step, logits);
    Workers::shared().run(head, num_threads);
}

// tokens, log_probs [num_rows, k] of logits [num_rows, num_tokens].
void swiftspec_top_candidates(const float* logits, int32_t num_rows, int32_t num_tokens, int32_t k, int32_t* tokens,
                              float* log_probs) {
    for (int64_t row = 0; row < num_rows; ++row)
        top_candidates(logits + row * num_tokens, num_tokens, k, tokens + row * k, log_probs + row * k);
}
}
