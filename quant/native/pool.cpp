#include "pool.h"

#include <chrono>
#include <map>
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

using Clock = std::chrono::steady_clock;

constexpr int kPausesBeforeYield = 2000;  // well under 0.1 ms: a step is almost always shorter
constexpr auto kYieldTime = std::chrono::microseconds(500);
constexpr auto kIdleTime = std::chrono::milliseconds(1);  // covers what lies between two decode steps
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kPollPeriod = std::chrono::milliseconds(20);
constexpr int kItemsPerPoll = 32;

std::atomic<uint64_t> fork_generation{0};

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
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

// What threads claim from: the number of the phase (a step of some job, or idleness), how many items it has, and how
// many claims there were. Claiming is one addition, and its outcome needs nothing but this word: a thread that comes
// late, even from an earlier job, either gets a valid item of the present step or finds that there is none.
struct Ticket {
    uint64_t word;
    uint32_t phase() const { return static_cast<uint32_t>(word >> 32); }
    uint32_t items() const { return static_cast<uint32_t>(word >> 16 & 0xFFFF); }
    uint32_t claims() const { return static_cast<uint32_t>(word & 0xFFFF); }
    static uint64_t make(uint32_t phase, uint32_t items) { return uint64_t{phase} << 32 | uint64_t{items} << 16; }
};

}  // namespace

FloatModeGuard::FloatModeGuard() : saved_(read_float_mode()) { write_float_mode(engine_float_mode()); }
FloatModeGuard::~FloatModeGuard() { write_float_mode(saved_); }

struct ThreadPool::State {
    explicit State(int count) : threads(count) {}

    const int threads;
    const uint64_t born = fork_generation.load();
    std::mutex run_mutex;  // one job at a time
    std::vector<std::thread> workers;
    // Written before the first ticket of a job; read by holders of a valid item, and step_ by the last of them.
    Job* job = nullptr;
    uint32_t step = 0;
    bool stopped = false;
    PollHook hook = nullptr;
    void* hook_argument = nullptr;
    Clock::time_point next_poll;
    int items_to_poll = 0;

    alignas(64) std::atomic<uint64_t> ticket{0};
    alignas(64) std::atomic<uint32_t> completed{0};
    alignas(64) std::atomic<uint32_t> jobs{0};  // sleeping workers wait for it to change
    alignas(64) std::atomic<bool> cancel{false};

    // Starts the first step from `next` on that has items, or idleness after the last. For the one thread that ends a
    // step or starts a job.
    void start_step(uint32_t next) {
        const uint32_t phase = Ticket{ticket.load(std::memory_order_relaxed)}.phase() + 1;
        stopped = cancel.load(std::memory_order_relaxed);
        const uint32_t end = stopped ? next : job->num_steps();
        uint32_t items = 0;
        while (next < end && (items = job->items(next)) == 0) ++next;
        step = next;
        completed.store(0, std::memory_order_relaxed);
        ticket.store(Ticket::make(phase, next < end ? items : 0), std::memory_order_release);
    }

    void poll(bool now) {
        if (hook == nullptr || (!now && --items_to_poll > 0)) return;
        items_to_poll = kItemsPerPoll;
        const auto time = Clock::now();
        if (time < next_poll) return;
        next_poll = time + kPollPeriod;
        if (hook(hook_argument)) cancel.store(true, std::memory_order_relaxed);
    }

    // Executes items of the present phase until there are no more; returns the ticket that found none.
    Ticket work(int thread) {
        for (;;) {
            const Ticket mine{ticket.fetch_add(1, std::memory_order_acq_rel)};
            if (mine.claims() >= mine.items()) return mine;
            Job& current = *job;
            const uint32_t now = step;
            if (!cancel.load(std::memory_order_relaxed)) current.execute(now, mine.claims(), thread);
            if (thread == 0) poll(current.long_items());
            if (completed.fetch_add(1, std::memory_order_acq_rel) + 1 == mine.items()) {
                current.finished(now);
                start_step(now + 1);
            }
        }
    }

    // Waits for the phase after `seen`; spins, then gives the core away. Returns false after `patience` in vain.
    bool wait_phase(uint32_t seen, Clock::duration patience) {
        const auto passed = [&] { return Ticket{ticket.load(std::memory_order_acquire)}.phase() != seen; };
        for (int i = 0; i < kPausesBeforeYield; ++i) {
            if (passed()) return true;
            pause();
        }
        for (const auto deadline = Clock::now() + patience; Clock::now() < deadline;) {
            for (int i = 0; i < 32; ++i) {
                if (passed()) return true;
                pause();
            }
            std::this_thread::yield();
        }
        return passed();
    }

    void serve(int thread) {
        FloatModeGuard mode;
        for (uint32_t known = 0;;) {
            const Ticket last = work(thread);
            if (last.items() > 0) {
                while (!wait_phase(last.phase(), kYieldTime)) std::this_thread::sleep_for(kNap);
                continue;
            }
            if (wait_phase(last.phase(), kIdleTime)) continue;
            // `known` is older than `jobs` whenever a job may have begun since the ticket was idle.
            jobs.wait(known, std::memory_order_acquire);
            known = jobs.load(std::memory_order_acquire);
        }
    }

    bool run(Job& next, PollHook next_hook, void* argument) {
        job = &next;
        hook = next_hook;
        hook_argument = argument;
        next_poll = Clock::now() + kPollPeriod;
        items_to_poll = kItemsPerPoll;
        cancel.store(false, std::memory_order_relaxed);
        start_step(0);
        jobs.fetch_add(1, std::memory_order_release);
        jobs.notify_all();
        for (;;) {
            const Ticket last = work(0);
            if (last.items() == 0) return !stopped;
            while (!wait_phase(last.phase(), kYieldTime)) poll(true);
        }
    }
};

ThreadPool::ThreadPool(int threads) : threads_(threads), state_(new State(threads)) {}

namespace {

std::mutex registry_mutex;

std::map<int, ThreadPool*>& registry() {
    static auto* pools = new std::map<int, ThreadPool*>;  // never destroyed: threads may outlive static destructors
    return *pools;
}

}  // namespace

ThreadPool& ThreadPool::shared(int threads) {
    if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads out of range");
    std::lock_guard lock(registry_mutex);
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork([] { registry_mutex.lock(); }, [] { registry_mutex.unlock(); }, [] {
        registry_mutex.unlock();
        fork_generation.fetch_add(1);
    });
    static_cast<void>(registered);
#endif
    ThreadPool*& pool = registry()[threads];
    if (pool == nullptr) pool = new ThreadPool(threads);
    return *pool;
}

void ThreadPool::request_cancel() {
    std::lock_guard lock(registry_mutex);
    for (const auto& [threads, pool] : registry())
        pool->state_.load(std::memory_order_acquire)->cancel.store(true, std::memory_order_relaxed);
}

ThreadPool::State& ThreadPool::current_state() {
    State* state = state_.load(std::memory_order_acquire);
    if (state->born == fork_generation.load(std::memory_order_acquire)) return *state;
    // In a forked child the workers do not exist and the mutex may be locked for ever: leave all that behind.
    auto* fresh = new State(threads_);
    if (state_.compare_exchange_strong(state, fresh)) return *fresh;
    delete fresh;
    return *state;
}

bool ThreadPool::run(Job& job, PollHook hook, void* hook_argument) {
    State& state = current_state();
    std::lock_guard lock(state.run_mutex);
    FloatModeGuard mode;
    while (static_cast<int>(state.workers.size()) < threads_ - 1) {
        const int thread = static_cast<int>(state.workers.size()) + 1;
        state.workers.emplace_back([&state, thread] { state.serve(thread); });
    }
    return state.run(job, hook, hook_argument);
}

}  // namespace specdec
