// Persistent threads that share out ranges of work, each with scratch memory of its own. Chunks go to whoever is free: kernels
// give the same bits whoever runs them. Work must not throw; what can fail (memory, threads) fails in the caller, before it starts.
//
// A decode step has some 200 parallel regions of 5 to 50 microseconds, so starting one must cost a fraction of that: workers
// wait by watching a counter for about 50 microseconds before they sleep, and the caller takes no lock unless one sleeps.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>
#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(LAB_HAS_X86)
#include <immintrin.h>
#endif

namespace labkernels {

inline void relax() {
#if defined(LAB_HAS_X86)
    _mm_pause();
#elif defined(__GNUC__) && defined(__aarch64__)
    asm volatile("yield");
#endif
}

// How often this process was forked off another: threads stay behind in the parent.
#if defined(_WIN32)
inline int generation_of_process() { return 0; }
#else
inline int generation_of_process() {
    static std::atomic<int> forks{0};
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forks++; });
    (void)registered;
    return forks.load(std::memory_order_relaxed);
}
#endif

class ThreadPool {
   public:
    explicit ThreadPool(int threads) : team_(std::make_unique<Team>()) {
        if (threads < 1 || threads > 1024)
            throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to 1024");
        team_->scratch.resize((size_t)threads);
        try {
            for (int i = 1; i < threads; i++) team_->workers.emplace_back([team = team_.get(), i] { team->serve(i); });
        } catch (const std::system_error&) {
            throw std::runtime_error("the system starts no more than " + std::to_string(size()) + " of " + std::to_string(threads) + " threads");
        }
    }
    ~ThreadPool() {
        if (forked()) (void)team_.release();  // the threads stayed in the parent process: nothing here can be joined, or destroyed in peace
    }

    int size() const { return (int)team_->workers.size() + 1; }

    // Calls work(begin, end, scratch) over [0, items), in chunks of at least `grain`, each thread with so many floats of scratch.
    // Returns when all is done. Few items (one grain) are done here and now: no thread is woken.
    template <class Work>
    void run(int64_t items, int64_t grain, int64_t scratch_floats, const Work& work) {
        if (items <= 0) return;
        if (forked()) return work(0, items, std::vector<float>((size_t)scratch_floats).data());  // its locks may be held for ever
        std::lock_guard<std::mutex> one_at_a_time(team_->turn);  // also what keeps callers off each other's scratch
        const bool alone = size() == 1 || items <= grain;
        for (int i = 0; i < (alone ? 1 : size()); i++)
            if ((int64_t)team_->scratch[i].size() < scratch_floats) team_->scratch[i].resize((size_t)scratch_floats);
        if (alone) return work(0, items, team_->scratch[0].data());
        Job job{items, std::max<int64_t>(grain, 1), size(), &work,
                [](const void* w, int64_t b, int64_t e, float* s) { (*static_cast<const Work*>(w))(b, e, s); }};
        team_->start(&job);
        job.take_chunks(team_->scratch[0].data());
        for (int i = 0; team_->busy.load(std::memory_order_acquire); i++)
            if (i < SPINS) relax();
            else std::this_thread::yield();
    }

   private:
    static constexpr int SPINS = 1000;  // of some 40 to 140 cycles each

    struct Job {
        int64_t items, grain, shares;
        const void* work;
        void (*call)(const void*, int64_t, int64_t, float*);
        std::atomic<int64_t> next{0};

        // A share of what is left, so large pieces first (neighbouring items are neighbours in memory) and small ones at the end
        // (so that all are done at the same time).
        void take_chunks(float* scratch) {
            for (int64_t at = next.load(std::memory_order_relaxed); at < items;) {
                const int64_t end = std::min(items, at + std::max(grain, (items - at) / shares));
                if (!next.compare_exchange_weak(at, end, std::memory_order_relaxed)) continue;
                call(work, at, end, scratch);
                at = next.load(std::memory_order_relaxed);
            }
        }
    };

    struct Team {
        std::vector<std::vector<float>> scratch;  // by thread, the caller's first
        std::vector<std::thread> workers;
        std::mutex turn, mutex;
        std::condition_variable wake;
        std::atomic<uint64_t> generation{0};
        std::atomic<int> busy{0}, asleep{0};
        Job* job = nullptr;

        ~Team() {
            start(nullptr);
            for (std::thread& worker : workers) worker.join();
        }

        void start(Job* next) {  // no job = go home
            job = next;
            busy.store((int)workers.size(), std::memory_order_relaxed);
            generation.fetch_add(1);
            if (!asleep.load()) return;  // who is about to sleep has counted itself, or sees the new generation
            std::lock_guard<std::mutex> lock(mutex);
            wake.notify_all();
        }

        void serve(int thread) {
            for (uint64_t seen = 0;; seen++) {
                for (int i = 0; i < SPINS && generation.load(std::memory_order_acquire) == seen; i++) relax();
                if (generation.load(std::memory_order_acquire) == seen) {
                    std::unique_lock<std::mutex> lock(mutex);
                    asleep++;
                    wake.wait(lock, [&] { return generation.load() != seen; });
                    asleep--;
                }
                if (!job) return;
                job->take_chunks(scratch[(size_t)thread].data());
                busy.fetch_sub(1, std::memory_order_release);
            }
        }
    };

    bool forked() const { return generation_of_process() != born_; }
    int born_ = generation_of_process();
    std::unique_ptr<Team> team_;
};

}  // namespace labkernels
