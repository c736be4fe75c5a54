// Threads of the native engine: one pool per process, spin barriers inside a run, sleep when idle.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace specdec {

// Called by thread 0 between pieces of work; returns true when the run should stop (a signal arrived).
using PollHook = bool (*)(void*);

// What the participants of one run share. A phase is the work between two `sync` calls.
class Team {
 public:
    int size() const { return size_; }

    // Barrier. Returns false, to every participant alike, once the run was cancelled; they must all return then.
    bool sync();

    // Next unclaimed index of the current phase, counting from 0; `sync` starts over.
    int64_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

    // True once somebody asked to stop: skip work, but still go to the next `sync`. Results are void then.
    bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }
    void cancel() { cancel_.store(true, std::memory_order_relaxed); }

    // Lets thread 0 look for signals every few milliseconds; cheap enough for every piece of work.
    void poll(int thread) {
        if (thread == 0 && hook_ != nullptr) poll_hook();
    }

 private:
    friend class ThreadPool;
    void reset(int size, PollHook hook, void* hook_argument);
    void poll_hook();

    int size_ = 1;
    PollHook hook_ = nullptr;
    void* hook_argument_ = nullptr;
    int64_t next_poll_ns_ = 0;
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
    bool stopped_ = false;  // written by the last to arrive, before it advances the generation
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<bool> cancel_{false};
};

class ThreadPool {
 public:
    using Task = std::function<void(Team&, int thread)>;
    static constexpr int kMaxThreads = 512;

    // The pool that every model of this process uses. It outlives everything and survives fork.
    static ThreadPool& shared();

    // Runs `task` on `threads` participants, the caller being thread 0; serialised. Tasks must not throw.
    // Returns false when the run was cancelled, by `request_cancel` or because `hook` returned true.
    bool run(int threads, const Task& task, PollHook hook = nullptr, void* hook_argument = nullptr);

    // Stops the run in progress, if any; callable from every thread and from a signal handler.
    void request_cancel();

 private:
    struct State;
    ThreadPool();
    State* current_state();

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
