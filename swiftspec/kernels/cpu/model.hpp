// A model's weights and the rows of a forward, as the caller lays them out: kernels.py and packing.py in
// swiftspec/engine/model/cpu own all memory, and cpu_library.py declares the same structs.
//
// R rows, H query heads, G key/value heads, D head dimension. Tensors are contiguous, row-major.
#pragma once

#include "linear.hpp"

// One of the networks among which a router chooses; all of a model have one shape.
struct Expert {
    Matrix gate_up;  // panels of 32 gates and of their 32 ups take turns
    Matrix down;     // [hidden, intermediate]
};

struct Layer {
    const float* attention_norm;     // [hidden]
    const float* feed_forward_norm;  // [hidden]
    const float* query_norm;         // [D], or null without head norms
    const float* key_norm;           // [D]
    Matrix qkv;                      // [(H + 2 G) * D, hidden]; rotating pairs are adjacent
    Matrix output;                   // [hidden, H * D]
    Matrix gate_up;                  // as of an expert; none where there are experts
    Matrix down;
    Matrix router;          // [experts, hidden]
    const Expert* experts;  // [experts], or null
};

struct Model {
    int32_t hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size, num_positions;
    float norm_eps;
    const void* embedding;  // [vocabulary, hidden], or null: then it is the head
    Format embedding_format;
    const float* final_norm;  // [hidden]
    const float* turns;       // [num_positions, D / 2, 2]: cosine and sine
    const Layer* layers;
    Matrix head;               // [vocabulary, hidden]
    int32_t num_experts;       // of a layer; 0: one network, dense
    int32_t num_active;        // experts that compute a row
    int32_t is_normalised;     // whether the weights of a row's experts add up to one

    int group_size() const { return num_heads / num_kv_heads; }
    int query_size() const { return num_heads * head_dim; }
    int qkv_size() const { return query_size() + 2 * num_kv_heads * head_dim; }
};

// The rows of one sequence in a forward, its model, and the cache that they read and extend.
struct SequenceRows {
    const Model* model;
    float* cache;            // [layers, 2 (keys, values), G, num_slots, D], keys as attention.hpp says
    const uint8_t* visible;  // [num_rows, mask_bytes()], bits: the tree's slots, then these rows. Null: causal, no tree
    int32_t num_slots;       // of a head in the cache: whole blocks of keys
    int32_t prefix_length, tree_length;
    int32_t first_row, num_rows;  // among the forward's
    int32_t num_logits;           // of the last of these rows, so many

    int end_row() const { return first_row + num_rows; }
    int first_slot() const { return prefix_length + tree_length; }  // of these rows
    int mask_bytes() const { return (tree_length + num_rows + 7) / 8; }
};

// A forward of R rows. What follows `positions` is the forward's state and scratch. The models of its sequences have one
// shape; weights that neighbours share, by their address, are read once for both.
struct Step {
    int32_t num_rows, num_sequences;
    const SequenceRows* sequences;  // in the order of their rows
    const int32_t* tokens;          // [R]
    const int32_t* positions;       // [R]
    float* residual;                // [R, hidden]
    float* normed;                  // [R, hidden]
    float* qkv;                     // [R, (H + 2 G) * D]
    float* attended;                // [R, H * D]
    float* gated;                   // [R, intermediate]; [R * active, intermediate] of experts
    float* shrunk;                  // [R, widest_adapter]
    int32_t widest_adapter;         // the largest rank of an adapter in any model; 0 if there is none
    float* routed;                  // [R * active, hidden]: normed rows, those of an expert together
    float* shares;                  // [R, active]: the weights of each row's experts
    int32_t* chosen;                // [layers, R, active]: each row's experts
    uint32_t* rounded;              // [R, rounded_width], or [R * active, ..]: the rows that are next to be multiplied
    int64_t rounded_width;

    // Rows to be multiplied: as they are, and as they were rounded last.
    Inputs inputs(const float* x) const { return {x, rounded, rounded_width}; }
    void round(Format format, const float* x, int size, int64_t first, int64_t last) const {
        if (!rounds_rows(format)) return;
        for (int64_t row = first; row < last; ++row) round_row(format, x + row * size, size, rounded + row * rounded_width);
    }
};
