// Which variants this machine can run, best first.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "labkernels/kernel_table.hpp"
#if defined(LAB_HAS_X86) && defined(_MSC_VER)
#include <intrin.h>
#endif

namespace labkernels {

#if defined(LAB_HAS_X86) && defined(_MSC_VER)
inline bool cpu_has(int leaf, int reg, int bit) {
    int r[4];
    __cpuidex(r, leaf, 0);
    return r[reg] >> bit & 1;
}
// the operating system must save the wide registers too: XCR0 bits 1-2 (ymm), 5-7 (zmm)
inline bool os_saves(unsigned long long mask) { return cpu_has(1, 2, 27) && (_xgetbv(0) & mask) == mask; }
inline bool has_avx2() { return os_saves(0x6) && cpu_has(7, 1, 5) && cpu_has(1, 2, 12) && cpu_has(1, 2, 29); }
inline bool has_avx512() {
    return has_avx2() && os_saves(0xe6) && cpu_has(7, 1, 16) && cpu_has(7, 1, 17) && cpu_has(7, 1, 30) && cpu_has(7, 1, 31) && cpu_has(7, 2, 11);
}
#elif defined(LAB_HAS_X86)
inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
inline bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

inline std::vector<const KernelTable*> runnable_variants() {
    std::vector<const KernelTable*> tables;
#if defined(LAB_HAS_X86)
    if (has_avx512()) tables.push_back(&avx512_kernels());
    if (has_avx2()) tables.push_back(&avx2_kernels());
#endif
    tables.push_back(&plain_kernels());
    return tables;
}

inline const KernelTable& variant(const std::string& isa) {
    std::string known;
    for (const KernelTable* table : runnable_variants()) {
        if (isa.empty() || isa == table->isa) return *table;
        known += (known.empty() ? "" : ", ") + std::string(table->isa);
    }
    throw std::invalid_argument("instruction set '" + isa + "' is not one this machine runs: " + known);
}

}  // namespace labkernels
