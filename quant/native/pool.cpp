#include "pool.h"

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace specdec {
namespace {

constexpr int kPausesBeforeYield = 4000;  // roughly 0.1 ms: a barrier inside a pass is almost always shorter
constexpr int64_t kBarrierYieldNs = 2'000'000;
constexpr int64_t kIdleYieldNs = 1'000'000;  // covers sampling between two decode steps, then the worker sleeps
constexpr int64_t kPollPeriodNs = 20'000'000;

constexpr uint32_t kSizeMask = 0x3FF;  // low bits of the epoch: participants of the run

std::atomic<uint64_t> fork_generation{0};

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
}

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

// Waits until `word` differs from `old`: spin, then give the core away, then sleep.
void wait_while(const std::atomic<uint32_t>& word, uint32_t old, int64_t yield_ns) {
    for (int i = 0; i < kPausesBeforeYield; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        pause();
    }
    const int64_t deadline = now_ns() + yield_ns;
    while (now_ns() < deadline) {
        for (int i = 0; i < 32; ++i) {
            if (word.load(std::memory_order_acquire) != old) return;
            pause();
        }
        std::this_thread::yield();
    }
    while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

uint64_t read_float_mode() {
#if defined(__x86_64__) || defined(_M_X64)
    return _mm_getcsr();
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
#else
    return 0;
#endif
}

void write_float_mode([[maybe_unused]] uint64_t mode) {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"(mode));
#endif
}

uint64_t engine_float_mode() {
#if defined(__x86_64__) || defined(_M_X64)
    return 0x1F80;  // all exceptions masked, nearest, no flush to zero
#else
    return 0;
#endif
}

}  // namespace

FloatModeGuard::FloatModeGuard() : saved_(read_float_mode()) { write_float_mode(engine_float_mode()); }
FloatModeGuard::~FloatModeGuard() { write_float_mode(saved_); }

void Team::reset(int size, PollHook hook, void* hook_argument) {
    size_ = size;
    hook_ = hook;
    hook_argument_ = hook_argument;
    next_poll_ns_ = now_ns() + kPollPeriodNs;
    stopped_ = false;
    next_.store(0, std::memory_order_relaxed);
    cancel_.store(false, std::memory_order_relaxed);
}

void Team::poll_hook() {
    const int64_t now = now_ns();
    if (now < next_poll_ns_) return;
    next_poll_ns_ = now + kPollPeriodNs;
    if (hook_(hook_argument_)) cancel();
}

bool Team::sync() {
    if (size_ == 1) {
        next_.store(0, std::memory_order_relaxed);
        return !cancelled();
    }
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
        arrived_.store(0, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        stopped_ = cancelled();
        generation_.store(generation + 1, std::memory_order_release);
        generation_.notify_all();
    } else {
        wait_while(generation_, generation, kBarrierYieldNs);
    }
    return !stopped_;
}

struct ThreadPool::State {
    std::mutex run_mutex;  // one run at a time
    std::vector<std::thread> workers;
    uint64_t born = fork_generation.load();
    Team team;
    const Task* task = nullptr;
    alignas(64) std::atomic<uint32_t> epoch{0};
    alignas(64) std::atomic<uint32_t> finished{0};

    // `seen` is the epoch at the worker's creation. The epoch carries the team's size, so that a worker that sits a
    // run out never looks at what the next run may be changing already.
    void work(int thread, uint32_t seen) {
        FloatModeGuard mode;
        for (;;) {
            wait_while(epoch, seen, kIdleYieldNs);
            seen = epoch.load(std::memory_order_acquire);
            if (thread >= static_cast<int>(seen & kSizeMask)) continue;
            (*task)(team, thread);
            finished.fetch_add(1, std::memory_order_release);
            finished.notify_one();
        }
    }
};

ThreadPool::ThreadPool() : state_(new State) {
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
#endif
}

ThreadPool& ThreadPool::shared() {
    static ThreadPool* pool = new ThreadPool;  // never destroyed: its threads may outlive static destructors
    return *pool;
}

ThreadPool::State* ThreadPool::current_state() {
    State* state = state_.load(std::memory_order_acquire);
    if (state->born == fork_generation.load(std::memory_order_acquire)) return state;
    // In a forked child the workers do not exist and the mutex may be locked for ever: leave all that behind.
    State* fresh = new State;
    if (state_.compare_exchange_strong(state, fresh)) return fresh;
    delete fresh;
    return state;
}

void ThreadPool::request_cancel() { state_.load(std::memory_order_acquire)->team.cancel(); }

bool ThreadPool::run(int threads, const Task& task, PollHook hook, void* hook_argument) {
    if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads out of range");
    State& state = *current_state();
    std::lock_guard lock(state.run_mutex);
    FloatModeGuard mode;
    state.team.reset(threads, hook, hook_argument);
    if (threads == 1) {
        task(state.team, 0);
        return !state.team.cancelled();
    }
    const auto wanted = static_cast<uint32_t>(threads - 1);
    const uint32_t epoch = state.epoch.load(std::memory_order_relaxed);
    while (state.workers.size() < wanted) {
        const int thread = static_cast<int>(state.workers.size()) + 1;
        state.workers.emplace_back([&state, thread, epoch] { state.work(thread, epoch); });
    }
    state.task = &task;
    state.finished.store(0, std::memory_order_relaxed);
    state.epoch.store(((epoch | kSizeMask) + 1) | static_cast<uint32_t>(threads), std::memory_order_release);
    state.epoch.notify_all();
    task(state.team, 0);
    for (uint32_t finished; (finished = state.finished.load(std::memory_order_acquire)) != wanted;) {
        wait_while(state.finished, finished, kBarrierYieldNs);
    }
    return !state.team.cancelled();
}

}  // namespace specdec
