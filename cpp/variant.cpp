// One variant of all kernels. CMake compiles this file once per instruction set, with its flags, as LAB_ISA = plain, avx2, avx512.
#include "labkernels/ceilings.hpp"
#include "labkernels/kernel_table.hpp"
#include "labkernels/linear.hpp"
#include "labkernels/paged_attention.hpp"
#include "labkernels/quantize.hpp"
#include "labkernels/rms_norm.hpp"
#include "labkernels/rope.hpp"
#include "labkernels/sampling.hpp"
#include "labkernels/silu_and_mul.hpp"
#include "labkernels/softmax.hpp"
#include "labkernels/topk_softmax.hpp"

#define LAB_JOIN(a, b) a##b
#define LAB_TABLE(isa) LAB_JOIN(isa, _kernels)
#define LAB_TEXT(a) #a
#define LAB_NAME(isa) LAB_TEXT(isa)

namespace labkernels {

const KernelTable& LAB_TABLE(LAB_ISA)() {
    using namespace LAB_ISA;
    static const KernelTable table = {
        LAB_NAME(LAB_ISA),
        rms_norm,
        add_rms_norm,
        softmax,
        topk_softmax,
        silu_and_mul,
        rope,
        quantize_rows,
        quantize_group,
        matmul,
        attend_split,
        merge_states,
        write_attention,
        sample,
        read,
        copy,
        multiply_adds,
        int8_dots,
        {{"unfused", rms_norm_unfused}, {"fused", rms_norm_fused}, {"chains", rms_norm_chains}, {"rms_norm", rms_norm}},
        {{"reference", softmax_reference}, {"online", softmax_online}, {"softmax", softmax}},
        {{"reference", topk_softmax_reference}, {"topk_softmax", topk_softmax}},
        {{"reference", silu_and_mul_reference}, {"silu_and_mul", silu_and_mul}},
        rope_reference,
        matmul_reference,
        paged_attention_reference,
        sample_reference,
    };
    return table;
}

}  // namespace labkernels
