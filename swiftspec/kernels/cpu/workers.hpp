// Threads that run a program of stages together. A stage is a number of independent tasks.
//
// Nobody waits for a thread, only for tasks that somebody has begun: whoever ends a stage's last task opens the next
// stage, and a thread whose own tasks are done takes those of others. So a thread that lost its core to another process
// delays a forward by at most one task, where a barrier of all threads would wait for it at every stage.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

constexpr int MOST_THREADS = 256;

class Program {
   public:
    virtual ~Program() = default;
    virtual int num_stages() const = 0;
    virtual int num_tasks(int stage) const = 0;  // at least one
    virtual void run_task(int stage, int task) = 0;
};

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins for a while, since the next stage opens within microseconds; then lets others have the core.
class Patience {
   public:
    explicit Patience(std::chrono::microseconds limit) : limit_(limit) {}
    void reset() { spins_ = 0; }
    bool is_over() {
        relax();
        if (++spins_ % 32) return false;
        const auto now = std::chrono::steady_clock::now();
        if (spins_ == 32) began_ = now;
        return now - began_ > limit_;
    }

   private:
    std::chrono::microseconds limit_;
    std::chrono::steady_clock::time_point began_;
    unsigned spins_ = 0;
};

class Workers {
   public:
    // Those of this process. A forked child, which has none of its parent's threads, gets its own.
    static Workers& shared() {
        static Workers* workers = nullptr;
        if (!workers || workers->owner_ != getpid()) workers = new Workers();
        return *workers;
    }

    // All stages, on `num_threads` threads, the caller's among them. One call at a time.
    void run(Program& program, int num_threads) {
        num_threads = std::clamp(num_threads, 1, MOST_THREADS);
        if (num_threads == 1) return run_alone(program);
        std::lock_guard lock(calls_);
        start(num_threads);
        program_ = &program;
        num_threads_ = num_threads;
        first_ = opened_ + 1;
        close(opened_);
        Patience patience{SPIN};
        while (finished_.load(std::memory_order_acquire) != first_ + program.num_stages()) {
            if (work(0)) {
                patience.reset();
            } else if (patience.is_over()) {
                sched_yield();
            }
        }
    }

   private:
    static constexpr std::chrono::microseconds SPIN{100};

    // Signals stay with the program's own threads.
    void start(int num_threads) {
        if (num_started_ >= num_threads) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (; num_started_ < num_threads; ++num_started_) std::thread(&Workers::serve, this, num_started_).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    static void run_alone(Program& program) {
        for (int stage = 0; stage < program.num_stages(); ++stage)
            for (int task = 0; task < program.num_tasks(stage); ++task) program.run_task(stage, task);
    }

    // A thread's share of a stage's tasks: number of the stage << 32 | how many are left. The number makes sure that a
    // thread which was away for a while claims nothing of a later stage by what it knew of an earlier one.
    struct alignas(64) Share {
        std::atomic<uint64_t> left{0};
    };

    void open(uint32_t number) {
        opened_ = number;
        const int num_tasks = program_->num_tasks(number - first_);
        num_tasks_ = num_tasks;
        unfinished_.store(num_tasks, std::memory_order_relaxed);
        for (int thread = 0; thread < num_threads_; ++thread) {
            const uint64_t count = begin_of(thread + 1) - begin_of(thread);
            shares_[thread].left.store(uint64_t(number) << 32 | count, std::memory_order_release);
        }
        wake();
    }

    int begin_of(int thread) const { return int64_t(num_tasks_) * thread / num_threads_; }

    // One task, of this thread's share or another's; false if none is left to begin.
    bool work(int thread) {
        const int num_threads = num_threads_.load(std::memory_order_relaxed);
        for (int turn = 0; turn < num_threads; ++turn) {
            const int owner = (thread + turn) % num_threads;
            std::atomic<uint64_t>& left = shares_[owner].left;
            uint64_t seen = left.load(std::memory_order_acquire);
            while (uint32_t(seen)) {
                if (left.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) {
                    const uint32_t number = seen >> 32;
                    program_->run_task(number - first_, begin_of(owner + 1) - int(uint32_t(seen)));
                    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) close(number);
                    return true;
                }
            }
        }
        return false;
    }

    // Whoever ended the last task of a stage does the next one alone if it has a single task, as sharing takes longer.
    void close(uint32_t number) {
        int stage = number - first_ + 1;
        for (; stage < program_->num_stages() && program_->num_tasks(stage) == 1; ++stage) program_->run_task(stage, 0);
        if (stage < program_->num_stages()) {
            open(first_ + stage);
        } else {
            opened_ = first_ + stage - 1;
            finished_.store(first_ + stage, std::memory_order_release);
        }
    }

    void serve(int thread) {
        Patience patience{SPIN};
        uint64_t seen = num_opened_.load();
        for (;;) {
            if (work(thread)) {
                patience.reset();
            } else if (patience.is_over()) {
                std::unique_lock lock(sleep_);
                ++num_sleeping_;
                woken_.wait(lock, [&] { return num_opened_.load() != seen; });
                --num_sleeping_;
                seen = num_opened_.load();
                patience.reset();
            }
        }
    }

    // At every stage: the last tasks of the one before may have taken others longer than a thread spins.
    void wake() {
        ++num_opened_;
        if (num_sleeping_.load() > 0) {
            { std::lock_guard lock(sleep_); }
            woken_.notify_all();
        }
    }

    const pid_t owner_ = getpid();
    std::mutex calls_;
    int num_started_ = 1;  // the caller is thread 0

    // Written before a share is stored, read after a task of it was claimed.
    Program* program_ = nullptr;
    uint32_t first_ = 0;  // number of the program's first stage
    uint32_t opened_ = 0;
    int num_tasks_ = 0;
    std::atomic<int> num_threads_{1};
    Share shares_[MOST_THREADS];
    alignas(64) std::atomic<uint32_t> unfinished_{0};
    alignas(64) std::atomic<uint32_t> finished_{0};

    std::mutex sleep_;
    std::condition_variable woken_;
    std::atomic<uint64_t> num_opened_{0};  // stages
    std::atomic<int> num_sleeping_{0};
};
