// The door for everyone else: a plain C interface, opened from Python by ctypes (labcore/kernels/ctypes_door.py).
// Each function returns 0, or the kind of error, whose message lab_last_error() gives to the thread that made the call.
#include "labkernels/checked.hpp"

#if defined(_WIN32)
#define LAB_API extern "C" __declspec(dllexport)
#else
#define LAB_API extern "C" __attribute__((visibility("default")))
#endif

using namespace labkernels;
using Array = const ArrayView*;

enum Status : int { OK, WRONG_TYPE, WRONG_SHAPE, WRONG_VALUE, FAILED };

static thread_local std::string last_error;

static int failed(Status status, const std::exception& error) {
    last_error = error.what();
    return status;
}

template <class Work>
static int guarded(const Work& work) {
    try {
        work();
        return OK;
    } catch (const TypeError& error) {
        return failed(WRONG_TYPE, error);
    } catch (const ShapeError& error) {
        return failed(WRONG_SHAPE, error);
    } catch (const std::invalid_argument& error) {
        return failed(WRONG_VALUE, error);
    } catch (const std::exception& error) {
        return failed(FAILED, error);
    }
}

LAB_API const char* lab_last_error() { return last_error.c_str(); }
LAB_API void lab_nothing() {}
LAB_API int64_t lab_array_bytes() { return sizeof(ArrayView); }  // for a caller to compare its own struct with

// The i-th instruction set this machine runs, best first; NULL behind the last.
LAB_API const char* lab_variant(int i) {
    const auto tables = runnable_variants();
    return i >= 0 && (size_t)i < tables.size() ? tables[(size_t)i]->isa : nullptr;
}

LAB_API int lab_matrix_from_float32(PackedMatrix** made, Array weight) {
    return guarded([&] { *made = checked::from_float32(*weight); });
}
LAB_API int lab_matrix_from_int8(PackedMatrix** made, Array weight, Array scales) {
    return guarded([&] { *made = checked::from_int8(*weight, *scales); });
}
LAB_API int lab_matrix_from_blocks(PackedMatrix** made, Array blocks, const char* format) {
    return guarded([&] { *made = checked::from_blocks(*blocks, format); });
}
LAB_API int64_t lab_matrix_rows(const PackedMatrix* matrix) { return matrix->view().rows; }
LAB_API int64_t lab_matrix_columns(const PackedMatrix* matrix) { return matrix->view().columns; }
LAB_API int64_t lab_matrix_nbytes(const PackedMatrix* matrix) { return matrix->nbytes(); }
LAB_API void lab_matrix_free(PackedMatrix* matrix) { delete matrix; }

LAB_API int lab_operators_new(Operators** made, const char* isa, int threads, int reference) {
    return guarded([&] { *made = new Operators(isa, threads, reference != 0); });
}
LAB_API const char* lab_operators_isa(const Operators* ops) { return ops->isa(); }
LAB_API void lab_operators_free(Operators* ops) { delete ops; }

LAB_API int lab_embedding(Operators* ops, Array out, Array token_ids, const PackedMatrix* weight) {
    return guarded([&] { checked::embedding(*ops, *out, *token_ids, *weight); });
}
LAB_API int lab_rms_norm(Operators* ops, Array out, Array x, Array weight, float eps) {
    return guarded([&] { checked::rms_norm(*ops, *out, *x, *weight, eps); });
}
LAB_API int lab_rms_norm_version(Operators* ops, const char* version, Array out, Array x, Array weight, float eps) {
    return guarded([&] { checked::rms_norm_version(*ops, version, *out, *x, *weight, eps); });
}
// The name of the i-th version, the plainest first; NULL behind the last.
LAB_API const char* lab_rms_norm_version_name(const Operators* ops, int i) {
    const auto& rungs = ops->kernels().rms_norms;
    return i >= 0 && (size_t)i < std::size(rungs) ? rungs[i].name : nullptr;
}
LAB_API int lab_add_rms_norm(Operators* ops, Array out, Array total, Array x, Array residual, Array weight, float eps) {
    return guarded([&] { checked::add_rms_norm(*ops, *out, *total, *x, *residual, *weight, eps); });
}
LAB_API int lab_linear(Operators* ops, Array out, Array x, const PackedMatrix* weight, Array bias) {
    return guarded([&] { checked::linear(*ops, *out, *x, *weight, *bias); });
}
LAB_API int lab_rope(Operators* ops, Array out, Array x, Array positions, Array cos, Array sin) {
    return guarded([&] { checked::rope(*ops, *out, *x, *positions, *cos, *sin); });
}
LAB_API int lab_store_kv(Operators* ops, Array kv, Array k, Array v, Array slot_mapping) {
    return guarded([&] { checked::store_kv(*ops, *kv, *k, *v, *slot_mapping); });
}
LAB_API int lab_paged_attention(Operators* ops, Array out, Array q, Array kv, Array positions, Array query_start, Array block_tables,
                                Array block_table_start, float scale) {
    return guarded([&] {
        checked::paged_attention(*ops, *out, *q, *kv, *positions, *query_start, *block_tables, *block_table_start, scale);
    });
}
LAB_API int lab_silu_and_mul(Operators* ops, Array out, Array gate, Array up) {
    return guarded([&] { checked::silu_and_mul(*ops, *out, *gate, *up); });
}
LAB_API int lab_softmax(Operators* ops, Array out, Array x) {
    return guarded([&] { checked::softmax(*ops, *out, *x); });
}
LAB_API int lab_topk_softmax(Operators* ops, Array weights, Array ids, Array router_logits, int renormalize) {
    return guarded([&] { checked::topk_softmax(*ops, *weights, *ids, *router_logits, renormalize != 0); });
}
LAB_API int lab_read(Operators* ops, double* sum, Array x) {
    return guarded([&] { *sum = checked::read(*ops, *x); });
}
LAB_API int lab_copy(Operators* ops, Array out, Array x) {
    return guarded([&] { checked::copy(*ops, *out, *x); });
}
LAB_API float lab_multiply_adds(Operators* ops, int64_t count) { return ops->multiply_adds(count); }
LAB_API int64_t lab_int8_dots(Operators* ops, int64_t count) { return ops->int8_dots(count); }
