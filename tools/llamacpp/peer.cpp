// Decodes given token ids greedily with llama.cpp, plainly or with a draft model; prints seconds and tokens as JSON.
//
// PEER_MODE ar | spec; PEER_PROMPTS a file with a prompt's ids in each line; PEER_N new tokens for each. PEER_MODE ask
// answers questions of its input, as tools/real_size/engine.py asks them. Everything else is llama.cpp's own options.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "arg.h"
#include "common.h"
#include "llama.h"
#include "sampling.h"
#include "speculative.h"

namespace {

double now() { return ggml_time_us() / 1e6; }

std::string variable(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value ? value : otherwise;
}

struct Batch {
    llama_batch rows;
    llama_context* context;

    explicit Batch(llama_context* context) : rows(llama_batch_init(llama_n_batch(context), 0, 1)), context(context) {}
    ~Batch() { llama_batch_free(rows); }
    void clear() { common_batch_clear(rows); }
    void add(llama_token token, llama_pos position, bool has_logits, llama_seq_id sequence = 0) {
        common_batch_add(rows, token, position, {sequence}, has_logits);
    }
    void decode() {
        if (llama_decode(context, rows)) exit(4);
    }
};

llama_token likeliest(llama_context* context, int row, int num_tokens) {
    const float* logits = llama_get_logits_ith(context, row);
    return std::max_element(logits, logits + num_tokens) - logits;
}

void forget_from(llama_context* context, llama_pos position) {
    llama_memory_seq_rm(llama_get_memory(context), 0, position, -1);
}

using Tokens = std::vector<llama_token>;

Tokens decode_plainly(llama_context* context, const Tokens& prompt, int num_new, int num_tokens) {
    llama_memory_clear(llama_get_memory(context), true);
    Batch batch(context);
    batch.clear();
    for (size_t i = 0; i < prompt.size(); ++i) batch.add(prompt[i], i, i + 1 == prompt.size());
    batch.decode();
    Tokens out{likeliest(context, -1, num_tokens)};
    for (int position = prompt.size(); int(out.size()) < num_new; ++position) {
        batch.clear();
        batch.add(out.back(), position, true);
        batch.decode();
        out.push_back(likeliest(context, -1, num_tokens));
    }
    return out;
}

// As llama.cpp's own example `speculative-simple`.
Tokens decode_speculatively(common_params& params, llama_model* model, llama_context* context, llama_context* draft,
                            common_speculative* speculative, const Tokens& prompt, int num_new) {
    llama_memory_clear(llama_get_memory(context), true);
    llama_memory_clear(llama_get_memory(draft), true);
    common_sampler_ptr sampler(common_sampler_init(model, params.sampling));
    Batch batch(context);
    batch.clear();
    for (size_t i = 0; i + 1 < prompt.size(); ++i) batch.add(prompt[i], i, false);
    batch.decode();
    common_speculative_process(speculative, batch.rows);
    Tokens text(prompt.begin(), prompt.end() - 1), out, proposed;
    text.reserve(llama_n_ctx(context));
    llama_token last = prompt.back();
    int length = text.size();
    common_speculative_begin(speculative, 0, text);
    while (int(out.size()) < num_new) {
        proposed.clear();
        const int room = std::min(int(llama_n_ctx(context)) - length - 2, num_new - int(out.size()) - 1);
        common_speculative_get_draft_params(speculative, 0) = {true, std::max(0, room), length, last, &text, &proposed};
        if (room > 0) common_speculative_draft(speculative);
        forget_from(draft, length);
        batch.clear();
        batch.add(last, length++, true);
        for (size_t i = 0; i < proposed.size(); ++i) batch.add(proposed[i], length + i, true);
        batch.decode();
        common_speculative_process(speculative, batch.rows);
        const auto accepted = common_sampler_sample_and_accept_n(sampler.get(), context, proposed);
        common_speculative_accept(speculative, 0, accepted.size() - 1);
        length += accepted.size() - 1;
        for (const llama_token token : accepted) {
            text.push_back(last);
            out.push_back(last = token);
        }
        forget_from(context, length);
        forget_from(draft, length);
    }
    out.resize(num_new);
    return out;
}

// Several random prompts one after the other, then a step for all at once until each has `num_new` tokens.
void answer(llama_context* context, int num_sequences, int length, int num_new, int num_tokens) {
    llama_memory_clear(llama_get_memory(context), true);
    Batch batch(context);
    Tokens latest;
    double start = now();
    for (int sequence = 0; sequence < num_sequences; ++sequence) {
        batch.clear();
        for (int i = 0; i < length; ++i) batch.add(10 + rand() % 3990, i, i + 1 == length, sequence);
        batch.decode();
        latest.push_back(likeliest(context, -1, num_tokens));
    }
    printf("{\"prompt_s\": %.6f, \"steps_s\": [", now() - start);
    for (int step = 0; step + 1 < num_new; ++step) {
        start = now();
        batch.clear();
        for (int sequence = 0; sequence < num_sequences; ++sequence)
            batch.add(latest[sequence], length + step, true, sequence);
        batch.decode();
        for (int row = 0; row < num_sequences; ++row) latest[row] = likeliest(context, row, num_tokens);
        printf("%s%.6f", step ? ", " : "", now() - start);
    }
    printf("]}\n");
    fflush(stdout);
}

std::vector<Tokens> read_prompts(const std::string& path) {
    std::vector<Tokens> prompts;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream numbers(line);
        Tokens prompt;
        for (int token; numbers >> token;) prompt.push_back(token);
        prompts.push_back(prompt);
    }
    return prompts;
}

}  // namespace

int main(int argc, char** argv) {
    common_params params;
    common_init();
    ggml_backend_load_all();
    if (!common_params_parse(argc, argv, params, LLAMA_EXAMPLE_SPECULATIVE)) return 1;
    const std::string mode = variable("PEER_MODE", "ar");
    const bool speculates = mode == "spec";
    const int most_proposed = speculates ? common_speculative_n_max(&params.speculative) : 0;
    const auto limits =
        common_speculative_get_output_limits(params.n_batch, params.n_parallel, std::max(most_proposed, 63));
    params.n_outputs_max = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;
    llama_backend_init();
    auto loaded = common_init_from_params(params);
    llama_model* const model = loaded->model();
    llama_context* const context = loaded->context();
    if (!context) return 2;
    const int num_tokens = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (mode == "ask") {
        for (int sequences, length, num_new; scanf("%d %d %d", &sequences, &length, &num_new) == 3;)
            answer(context, sequences, length, num_new, num_tokens);
        return 0;
    }
    const auto prompts = read_prompts(variable("PEER_PROMPTS", "prompts.txt"));
    if (prompts.empty()) return 3;
    common_speculative_init_result_ptr loaded_draft;
    common_speculative* speculative = nullptr;
    if (speculates) {
        common_params draft_params = common_base_params_to_speculative(params);
        loaded_draft = common_speculative_init_from_params(draft_params, model, context);
        params.speculative.draft.ctx_tgt = context;
        params.speculative.draft.ctx_dft = loaded_draft->context();
        speculative = common_speculative_init(params.speculative, 1);
        if (!speculative) return 3;
    }
    const auto decode = [&](const Tokens& prompt, int num_new) {
        return speculates ? decode_speculatively(params, model, context, loaded_draft->context(), speculative, prompt,
                                                 num_new)
                          : decode_plainly(context, prompt, num_new, num_tokens);
    };
    const int num_new = std::stoi(variable("PEER_N", "128"));
    decode(prompts[0], 16);  // warm
    for (const Tokens& prompt : prompts) {
        const double start = now();
        const Tokens out = decode(prompt, num_new);
        printf("{\"seconds\": %.6f, \"tokens\": [", now() - start);
        for (size_t i = 0; i < out.size(); ++i) printf("%s%d", i ? ", " : "", out[i]);
        printf("]}\n");
    }
    if (speculative) common_speculative_free(speculative);
    return 0;
}
