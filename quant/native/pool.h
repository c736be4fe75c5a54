// Threads of the native engine. A job is a sequence of steps, each of a number of items that may run in any order on
// any thread; a step begins when all items of the one before are done.
//
// Threads claim items one by one, and what ends a step is its last item, not the arrival of every thread. So a thread
// that the system has put aside holds nobody up unless it is in the middle of an item. Threads spin between items and
// for a short while after a job, then they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace specdec {

class Job {
 public:
    virtual ~Job() = default;
    virtual uint32_t num_steps() const = 0;
    virtual uint32_t items(uint32_t step) const = 0;  // at most ThreadPool::kMaxItems; 0 skips the step
    virtual void execute(uint32_t step, uint32_t item, int thread) = 0;  // must not throw
    virtual void finished(uint32_t) {}                // after the step's last item, before the next step
    virtual bool long_items() const { return false; }  // items take so long that signals are looked for after each
};

// Called by the calling thread between items; returns true when the job should stop (a signal arrived).
using PollHook = bool (*)(void*);

class ThreadPool {
 public:
    static constexpr int kMaxThreads = 512;
    static constexpr uint32_t kMaxItems = 60000;

    // The pool of this process that has `threads` threads, the caller's included; made when first asked for. It
    // outlives everything and survives fork. Throws std::invalid_argument.
    static ThreadPool& shared(int threads);

    // Runs a job, the caller being thread 0; one at a time, others wait. Returns false when it was cancelled, by
    // request_cancel or because `hook` returned true; then some items were left out.
    bool run(Job& job, PollHook hook = nullptr, void* hook_argument = nullptr);

    // Stops the jobs in progress in all pools.
    static void request_cancel();

 private:
    struct State;
    explicit ThreadPool(int threads);
    State& current_state();

    const int threads_;
    std::atomic<State*> state_;
};

// Round to nearest, denormals kept: what the engine computes in, whatever the host program has set.
class FloatModeGuard {
 public:
    FloatModeGuard();
    ~FloatModeGuard();
    FloatModeGuard(const FloatModeGuard&) = delete;
    FloatModeGuard& operator=(const FloatModeGuard&) = delete;

 private:
    uint64_t saved_;
};

}  // namespace specdec
