// What a layer consists of.
#pragma once

#include <initializer_list>
#include <vector>

// SHRINK stages are the first products of adapters, and left out where there are none; ROUND stages where no rows are
// rounded. Experts replace GATE_UP and DOWN. NORM, SECOND_NORM and GATHER round what they write.
enum class Stage {
    NORM, SHRINK_QKV, QKV, ROTATION, ATTENTION, ROUND_ATTENDED, SHRINK_OUTPUT, OUTPUT,
    SECOND_NORM, SHRINK_GATE_UP, GATE_UP, ROUND_GATED, SHRINK_DOWN, DOWN,
    ROUTE, GROUP, GATHER, EXPERTS_GATE_UP, EXPERTS_DOWN
};

enum class Part { ATTENTION, FEED_FORWARD, WHOLE };

inline std::vector<Stage> stages_of(Part part, bool has_adapters, bool has_experts, bool rounds) {
    std::vector<Stage> stages;
    const auto append = [&](Stage shrink, std::initializer_list<Stage> others) {
        if (has_adapters) stages.push_back(shrink);
        stages.insert(stages.end(), others);
    };
    const auto round = [&](Stage stage) {
        if (rounds) stages.push_back(stage);
    };
    if (part != Part::FEED_FORWARD) {
        stages.push_back(Stage::NORM);
        append(Stage::SHRINK_QKV, {Stage::QKV, Stage::ROTATION, Stage::ATTENTION});
        round(Stage::ROUND_ATTENDED);
        append(Stage::SHRINK_OUTPUT, {Stage::OUTPUT});
    }
    if (part == Part::ATTENTION) return stages;
    stages.push_back(Stage::SECOND_NORM);
    if (has_experts) {
        stages.insert(stages.end(), {Stage::ROUTE, Stage::GROUP, Stage::GATHER, Stage::EXPERTS_GATE_UP});
        round(Stage::ROUND_GATED);
        stages.push_back(Stage::EXPERTS_DOWN);
    } else {
        append(Stage::SHRINK_GATE_UP, {Stage::GATE_UP});
        round(Stage::ROUND_GATED);
        append(Stage::SHRINK_DOWN, {Stage::DOWN});
    }
    return stages;
}
