// The layers of a Llama-type decoder for a few rows at a time: weights as stored, arithmetic in fp32.
//
// R rows of one or several sequences, H query heads, G key/value heads, J = H / G, D head dimension. Products are
// computed for all rows together, attention for each sequence.

#include <vector>

#include "attention.hpp"
#include "candidates.hpp"
#include "experts.hpp"
#include "gates.hpp"
#include "linear.hpp"
#include "model.hpp"
#include "runs.hpp"
#include "stages.hpp"
#include "workers.hpp"

namespace {

void normalise(const float* x, const float* weight, int size, float eps, float* out) {
    const float scale = 1.0f / std::sqrt(dot(x, x, size) / size + eps);
    for (int i = 0; i < size; ++i) out[i] = x[i] * scale * weight[i];
}

void embed(const Model& model, int token, float* out) {
    const int64_t size = model.hidden_size;
    with_format(model.embedding_format, [&](auto format) {
        using W = decltype(format);
        if constexpr (!std::is_same_v<W, Int8>) {  // an embedding is never rounded to int8
            const auto* const rows = static_cast<const typename W::Stored*>(model.embedding);
            const auto* const panels = static_cast<const typename W::Stored*>(model.head.panels);
            const int64_t num_groups = (size + W::INPUTS - 1) / W::INPUTS;
            for (int64_t k = 0; k < size; ++k) {
                const int64_t group = token / PANEL * num_groups + k / W::INPUTS;
                const int64_t place = (group * PANEL + token % PANEL) * W::INPUTS + k % W::INPUTS;
                out[k] = W::value(rows ? rows[token * size + k] : panels[place]);
            }
        }
    });
}

// Of a task of attention. Many rows, a prompt's, read keys and values less often if more of them do so together.
constexpr int QUERIES_PER_TASK = 8, QUERIES_OF_MANY_ROWS = 32, MANY_ROWS = 32;
constexpr int MOST_SCORES = 1 << 17;  // of a task: half a megabyte

// Norms and rotations of a few rows take less time than sharing them out.
constexpr int ROWS_PER_TASK = 16;

int num_row_tasks(int num_rows) { return (num_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK; }

// A layer's matrix in each model.
template <Matrix Layer::*MEMBER>
auto weights(int layer) {
    return [layer](const Model& model) -> const Matrix& { return model.layers[layer].*MEMBER; };
}

// A part of some layers. OUTPUT and DOWN add to `target` [R, hidden]: the residual, or what a caller wants to add up with
// other ranks' first.
class Layers final : public Program {
   public:
    Layers(const Step& step, Part part, int first_layer, int end_layer, float* target)
        : step_(step),
          shape_(*step.sequences[0].model),
          stages_(stages_of(part, step.widest_adapter > 0, shape_.num_experts > 0,
                            rounds_rows(held(first_layer).output.format))),
          first_layer_(first_layer),
          num_layers_(end_layer - first_layer),
          target_(target),
          runs_(runs_of(step, [](const SequenceRows& sequence) { return sequence.num_rows; })),
          blocks_(row_blocks(shape_, step)) {}

    int num_stages() const override { return num_layers_ * int(stages_.size()); }

    int num_tasks(int number) const override {
        const int layer = layer_of(number);
        switch (stage_of(number)) {
            case Stage::QKV: return num_piece_tasks(runs_, weights<&Layer::qkv>(layer));
            case Stage::OUTPUT: return num_piece_tasks(runs_, weights<&Layer::output>(layer));
            case Stage::GATE_UP: return num_piece_tasks(runs_, weights<&Layer::gate_up>(layer));
            case Stage::DOWN: return num_piece_tasks(runs_, weights<&Layer::down>(layer));
            case Stage::ATTENTION: return shape_.num_kv_heads * int(blocks_.size());
            case Stage::NORM:
            case Stage::ROTATION:
            case Stage::SECOND_NORM:
            case Stage::ROUND_ATTENDED:
            case Stage::ROUND_GATED:
            case Stage::ROUTE:
            case Stage::GATHER: return num_row_tasks(step_.num_rows);
            case Stage::GROUP: return 1;
            case Stage::EXPERTS_GATE_UP: return int(routed_.groups.size()) * num_product_tasks(experts(layer)->gate_up);
            case Stage::EXPERTS_DOWN: return num_product_tasks(experts(layer)->down);
            default: return runs_.size();
        }
    }

    void run_task(int number, int task) override {
        const int layer = layer_of(number);
        const int first = task * ROWS_PER_TASK, last = std::min(step_.num_rows, first + ROWS_PER_TASK);
        switch (stage_of(number)) {
            case Stage::NORM: return normalise_rows<&Layer::attention_norm>(layer, first, last, held(layer).qkv);
            case Stage::SHRINK_QKV: return shrink(step_, runs_[task], weights<&Layer::qkv>(layer), step_.normed);
            case Stage::QKV: return qkv(layer, task);
            case Stage::ROTATION: return rotate_and_cache(layer, first, last);
            case Stage::ATTENTION: return attend(layer, task);
            case Stage::ROUND_ATTENDED: return round(held(layer).output, step_.attended, first, last);
            case Stage::SHRINK_OUTPUT: return shrink(step_, runs_[task], weights<&Layer::output>(layer), step_.attended);
            case Stage::OUTPUT: return add<&Layer::output>(layer, step_.attended, task);
            case Stage::SECOND_NORM:
                return normalise_rows<&Layer::feed_forward_norm>(layer, first, last, held(layer).gate_up);
            case Stage::SHRINK_GATE_UP: return shrink(step_, runs_[task], weights<&Layer::gate_up>(layer), step_.normed);
            case Stage::GATE_UP: return gate_up(layer, task);
            case Stage::ROUND_GATED: return round_gated(layer, first, last);
            case Stage::SHRINK_DOWN: return shrink(step_, runs_[task], weights<&Layer::down>(layer), step_.gated);
            case Stage::DOWN: return add<&Layer::down>(layer, step_.gated, task);
            case Stage::ROUTE: return route(step_, shape_, layer, first, last);
            case Stage::GROUP: return routed_.group(step_, shape_, layer);
            case Stage::GATHER: return gather(layer, first, last);
            case Stage::EXPERTS_GATE_UP: return experts_gate_up(layer, task);
            case Stage::EXPERTS_DOWN: return experts_down(layer, task);
        }
    }

   private:
    int layer_of(int number) const { return first_layer_ + number / int(stages_.size()); }
    Stage stage_of(int number) const { return stages_[number % int(stages_.size())]; }

    const Layer& held(int layer) const { return shape_.layers[layer]; }  // of any model: formats are those of all

    void round(const Matrix& next, const float* x, int first, int last) const {
        step_.round(next.format, x, next.num_inputs, first, last);
    }

    void round_gated(int layer, int first, int last) const {
        if (!experts(layer)) return round(held(layer).down, step_.gated, first, last);
        round(experts(layer)->down, step_.gated, first * shape_.num_active, last * shape_.num_active);
    }

    template <const float* Layer::*NORM>
    void normalise_rows(int layer, int first, int last, const Matrix& next) {
        const int64_t size = shape_.hidden_size;
        for (const Run& run : runs_)
            for (int64_t row = std::max(first, run.first); row < std::min(last, run.last); ++row)
                normalise(step_.residual + row * size, run.model->layers[layer].*NORM, size, shape_.norm_eps,
                          step_.normed + row * size);
        round(next, step_.normed, first, last);
    }

    void qkv(int layer, int task) {
        multiply_pieces(step_, runs_, weights<&Layer::qkv>(layer), step_.normed, task,
                        [&](int row, int output, float* sums, int width) {
                            std::copy_n(sums, width, step_.qkv + int64_t(row) * shape_.qkv_size() + output);
                        });
    }

    // Rotates queries and keys, scales the queries, and puts keys and values into the caches.
    void rotate_and_cache(int layer, int first, int last) {
        for (int s = 0; s < step_.num_sequences; ++s) {
            const SequenceRows& sequence = step_.sequences[s];
            const int begin = std::max(first, sequence.first_row), end = std::min(last, sequence.end_row());
            for (int row = begin; row < end; ++row) rotate_and_cache_row(layer, sequence, row);
        }
    }

    void rotate_and_cache_row(int layer, const SequenceRows& sequence, int row) {
        const int size = shape_.head_dim, num_heads = shape_.num_heads, num_kv_heads = shape_.num_kv_heads;
        const Layer& held = sequence.model->layers[layer];
        const float scale = 1.0f / std::sqrt(float(size));
        float* const queries = step_.qkv + int64_t(row) * shape_.qkv_size();
        float *const keys = queries + shape_.query_size(), *const values = keys + num_kv_heads * size;
        const float* const turns = shape_.turns + int64_t(step_.positions[row]) * size;
        const int64_t slot = sequence.first_slot() + row - sequence.first_row;
        for (int h = 0; h < num_heads; ++h) position(queries + h * size, held.query_norm, turns, scale);
        for (int g = 0; g < num_kv_heads; ++g) {
            position(keys + g * size, held.key_norm, turns, 1.0f);
            float* const key = cached(layer, sequence, 0, g) + slot / KEY_BLOCK * KEY_BLOCK * size + slot % KEY_BLOCK;
            for (int d = 0; d < size; ++d) key[d * KEY_BLOCK] = keys[g * size + d];
            std::copy_n(values + g * size, size, cached(layer, sequence, 1, g) + slot * size);
        }
    }

    void position(float* head, const float* norm, const float* turns, float scale) const {
        const int size = shape_.head_dim;
        if (norm) normalise(head, norm, size, shape_.norm_eps, head);
        for (int d = 0; d < size; d += 2) {
            const float real = head[d] * scale, imaginary = head[d + 1] * scale;
            head[d] = real * turns[d] - imaginary * turns[d + 1];
            head[d + 1] = real * turns[d + 1] + imaginary * turns[d];
        }
    }

    float* cached(int layer, const SequenceRows& sequence, int is_value, int group) const {
        const int64_t before = (int64_t(layer) * 2 + is_value) * shape_.num_kv_heads + group;
        return sequence.cache + before * sequence.num_slots * shape_.head_dim;
    }

    // Rows of one sequence: with a key/value head, a task of attention.
    struct RowBlock {
        const SequenceRows* sequence;
        int first, last;
    };

    // Scores of a row: one for each slot, in whole blocks.
    static int room_for(const SequenceRows& sequence) {
        return (sequence.first_slot() + sequence.num_rows + KEY_BLOCK - 1) / KEY_BLOCK * KEY_BLOCK + KEY_BLOCK;
    }

    // In each as many rows as a task has queries for, at least one.
    static std::vector<RowBlock> row_blocks(const Model& model, const Step& step) {
        std::vector<RowBlock> blocks;
        for (int s = 0; s < step.num_sequences; ++s) {
            const SequenceRows& sequence = step.sequences[s];
            const int most = sequence.num_rows < MANY_ROWS ? QUERIES_PER_TASK : QUERIES_OF_MANY_ROWS;
            const int most_rows = std::max(1, std::min(most, MOST_SCORES / room_for(sequence)) / model.group_size());
            for (int row = sequence.first_row; row < sequence.end_row(); row += most_rows)
                blocks.push_back({&sequence, row, std::min(sequence.end_row(), row + most_rows)});
        }
        return blocks;
    }

    void attend(int layer, int task) {
        const int size = shape_.head_dim, heads = shape_.group_size(), group = task % shape_.num_kv_heads;
        const RowBlock& block = blocks_[task / shape_.num_kv_heads];
        const SequenceRows& sequence = *block.sequence;
        const int64_t room = room_for(sequence), num_rows = block.last - block.first;
        float* scores = scratch(num_rows * (heads + 1) * room);
        const Attention attention{cached(layer, sequence, 0, group), cached(layer, sequence, 1, group), size};
        Query queries[Attention::MOST_QUERIES];
        int count = 0;
        for (int64_t row = block.first; row < block.last; ++row) {
            auto* const others = reinterpret_cast<int32_t*>(scores);
            scores += room;
            const int within = row - sequence.first_row;
            const int num_first = sequence.prefix_length + (sequence.visible ? 0 : within + 1);
            const int num_others = list_visible(sequence, within, others);
            for (int64_t head = group * heads; head < (group + 1) * heads; ++head, scores += room) {
                queries[count++] = {step_.qkv + row * shape_.qkv_size() + head * size, num_first, others, num_others,
                                    scores, step_.attended + row * shape_.query_size() + head * size};
                if (count < Attention::MOST_QUERIES) continue;
                attention.run(queries, count);
                count = 0;
            }
        }
        if (count) attention.run(queries, count);
    }

    // Slots after the prefix that a row of a tree sees.
    static int list_visible(const SequenceRows& sequence, int within, int32_t* slots) {
        if (!sequence.visible) return 0;
        int count = 0;
        const int num_bytes = sequence.mask_bytes();
        const uint8_t* const mask = sequence.visible + int64_t(within) * num_bytes;
        for (int byte = 0; byte < num_bytes; ++byte)
            for (unsigned left = mask[byte]; left; left &= left - 1)
                slots[count++] = sequence.prefix_length + byte * 8 + __builtin_ctz(left);
        return count;
    }

    template <Matrix Layer::*MEMBER>
    void add(int layer, const float* x, int task) {
        multiply_pieces(step_, runs_, weights<MEMBER>(layer), x, task, [&](int row, int output, float* sums, int width) {
            float* const target = target_ + int64_t(row) * shape_.hidden_size + output;
            for (int n = 0; n < width; ++n) target[n] += sums[n];
        });
    }

    void gate_up(int layer, int task) {
        Gates gates(step_.gated, shape_.intermediate_size);
        multiply_pieces(step_, runs_, weights<&Layer::gate_up>(layer), step_.normed, task,
                        [&](int row, int output, float* sums, int) { gates.put(row, output, sums); });
    }

    const Expert* experts(int layer) const { return shape_.layers[layer].experts; }

    void gather(int layer, int first, int last) const {
        routed_.gather(step_, experts(layer)->gate_up, first * shape_.num_active, last * shape_.num_active);
    }

    void experts_gate_up(int layer, int task) {
        const int num_tasks = num_product_tasks(experts(layer)->gate_up);
        const RoutedRows::Group& group = routed_.groups[task / num_tasks];
        Gates gates(step_.gated, shape_.intermediate_size);
        multiply(
            experts(layer)[group.expert].gate_up, step_.inputs(step_.routed).from(group.first, shape_.hidden_size),
            group.size(), task % num_tasks, NothingToAdd(),
            [&](int row, int output, float* sums, int) { gates.put(group.first + row, output, sums); });
    }

    // Some outputs of all experts, so that those of a row are added up in one order.
    void experts_down(int layer, int task) {
        for (const RoutedRows::Group& group : routed_.groups)
            multiply(
                experts(layer)[group.expert].down, step_.inputs(step_.gated).from(group.first, shape_.intermediate_size),
                group.size(), task, NothingToAdd(),
                [&](int row, int output, float* sums, int width) {
                    const int routed = group.first + row;
                    const float share = routed_.share_of[routed];
                    float* const to = target_ + int64_t(routed_.row_of[routed]) * shape_.hidden_size + output;
                    for (int n = 0; n < width; ++n) to[n] += share * sums[n];
                });
    }

    const Step& step_;
    const Model& shape_;  // any of the models
    const std::vector<Stage> stages_;
    const int first_layer_, num_layers_;
    float* const target_;
    const std::vector<Run> runs_;
    const std::vector<RowBlock> blocks_;
    RoutedRows routed_;  // of the layer in progress; a model with experts has no tenants
};

// The final norm and the output embedding of the rows that are to have logits.
class Head final : public Program {
   public:
    Head(const Step& step, float* logits)
        : step_(step),
          shape_(*step.sequences[0].model),
          logits_(logits),
          runs_(runs_of(step, [](const SequenceRows& sequence) { return sequence.num_logits; })) {
        for (int s = 0; s < step.num_sequences; ++s) {
            const SequenceRows& sequence = step.sequences[s];
            for (int left = sequence.num_logits; left > 0; --left) rows_.push_back(sequence.end_row() - left);
        }
    }

    int num_stages() const override { return 2; }
    int num_tasks(int stage) const override {
        return stage == 0 ? num_row_tasks(num_rows()) : num_piece_tasks(runs_, head);
    }

    void run_task(int stage, int task) override {
        if (stage == 0) return norm(task * ROWS_PER_TASK, std::min(num_rows(), (task + 1) * ROWS_PER_TASK));
        multiply_pieces(step_, runs_, head, step_.normed, task, [&](int row, int output, float* sums, int width) {
            std::copy_n(sums, width, logits_ + int64_t(row) * shape_.head.num_outputs + output);
        });
    }

   private:
    static const Matrix& head(const Model& model) { return model.head; }
    int num_rows() const { return rows_.size(); }

    void norm(int first, int last) {
        const int64_t size = shape_.hidden_size;
        for (const Run& run : runs_)
            for (int64_t i = std::max(first, run.first); i < std::min(last, run.last); ++i)
                normalise(step_.residual + rows_[i] * size, run.model->final_norm, size, shape_.norm_eps,
                          step_.normed + i * size);
        step_.round(shape_.head.format, step_.normed, shape_.head.num_inputs, first, last);
    }

    const Step& step_;
    const Model& shape_;  // any of the models
    float* const logits_;
    const std::vector<Run> runs_;  // of the rows that have logits
    std::vector<int32_t> rows_;
};

}  // namespace

extern "C" {

int32_t swiftspec_lanes() { return LANES; }
int32_t swiftspec_has_float16() { return HAS_FLOAT16; }
int32_t swiftspec_has_bfloat16_products() { return HAS_BFLOAT16_PRODUCTS; }

// The residual before the first layer. Returns a row whose token or position does not exist; -1 if there is none.
int32_t swiftspec_embed(const Step* step) {
    for (int s = 0; s < step->num_sequences; ++s) {
        const SequenceRows& sequence = step->sequences[s];
        const Model& model = *sequence.model;
        for (int64_t row = sequence.first_row; row < sequence.end_row(); ++row) {
            const int32_t token = step->tokens[row], position = step->positions[row];
            if (token < 0 || token >= model.vocab_size || position < 0 || position >= model.num_positions) return row;
            embed(model, token, step->residual + row * model.hidden_size);
        }
    }
    return -1;
}

// Layers `first` to `last` (exclusive), of which the residual is input and output.
void swiftspec_layers(const Step* step, int32_t first, int32_t last, int32_t num_threads) {
    if (first >= last) return;
    Layers layers(*step, Part::WHOLE, first, last, step->residual);
    Workers::shared().run(layers, num_threads);
}

// Half a layer, whose result is added to `update` [R, hidden].
void swiftspec_attention(const Step* step, int32_t layer, float* update, int32_t num_threads) {
    Layers half(*step, Part::ATTENTION, layer, layer + 1, update);
    Workers::shared().run(half, num_threads);
}

void swiftspec_feed_forward(const Step* step, int32_t layer, float* update, int32_t num_threads) {
    Layers half(*step, Part::FEED_FORWARD, layer, layer + 1, update);
    Workers::shared().run(half, num_threads);
}

// logits [rows, vocabulary] of the rows that are to have them, from the residual.
void swiftspec_logits(const Step* step, float* logits, int32_t num_threads) {
    Head head(*step, logits);
    Workers::shared().run(head, num_threads);
}

// tokens, log_probs [num_rows, k] of logits [num_rows, num_tokens]; or, if there is noise [num_tokens] for each row, of
// logits / temperature + noise.
void swiftspec_top_candidates(const float* logits, const float* const* noise, float temperature, int32_t num_rows,
                              int32_t num_tokens, int32_t k, int32_t* tokens, float* log_probs) {
    std::vector<float> noisy(noise ? num_tokens : 0);
    for (int64_t row = 0; row < num_rows; ++row) {
        const float* scores = logits + row * num_tokens;
        if (noise) add_noise(scores, noise[row], temperature, num_tokens, noisy.data());
        top_candidates(noise ? noisy.data() : scores, num_tokens, k, tokens + row * k, log_probs + row * k);
    }
}

// tokens [num_rows]: the likeliest by logits / temperature + noise.
void swiftspec_draw(const float* logits, const float* const* noise, float temperature, int32_t num_rows,
                    int32_t num_tokens, int32_t* tokens) {
    std::vector<float> noisy(num_tokens);
    for (int64_t row = 0; row < num_rows; ++row)
        tokens[row] = add_noise(logits + row * num_tokens, noise[row], temperature, num_tokens, noisy.data());
}
}
