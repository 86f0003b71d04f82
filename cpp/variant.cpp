// One variant of all kernels. CMake compiles this file once per instruction set, with its flags, as LAB_ISA = plain, avx2, avx512.
#include "labkernels/kernel_table.hpp"
#include "labkernels/linear.hpp"
#include "labkernels/paged_attention.hpp"
#include "labkernels/rms_norm.hpp"
#include "labkernels/rope.hpp"
#include "labkernels/silu_and_mul.hpp"

#define LAB_JOIN(a, b) a##b
#define LAB_TABLE(isa) LAB_JOIN(isa, _kernels)
#define LAB_TEXT(a) #a
#define LAB_NAME(isa) LAB_TEXT(isa)

namespace labkernels {

static_assert(LAB_ISA::PANELS <= PANEL_GROUP, "linear would overrun its scratch");

const KernelTable& LAB_TABLE(LAB_ISA)() {
    static const KernelTable table = {LAB_NAME(LAB_ISA), LAB_ISA::rms_norm,        LAB_ISA::add_rms_norm, LAB_ISA::linear,
                                      LAB_ISA::rope,     LAB_ISA::paged_attention, LAB_ISA::silu_and_mul};
    return table;
}

}  // namespace labkernels
