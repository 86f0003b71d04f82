// A vector of 16 floats, in three forms: plain C++, AVX2 (two registers), AVX-512 (one register).
//
// Every kernel is written once over this type. Sixteen lanes everywhere, one reduction tree, one exp: a kernel sums in the
// same order in each form. What differs is the multiply-add: fused in the SIMD forms, apart in the plain one. So results have
// difference 0.0 within a form, and agree within rounding across forms.
//
// A translation unit per form (variant.cpp) defines LAB_ISA and one of LAB_ISA_AVX512, LAB_ISA_AVX2 (or neither), and gets its own
// namespace. It includes no standard C++ header: an inline function of the library, compiled here with AVX-512 and merged by
// the linker with its twin from elsewhere, would run on machines that lack it.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(LAB_ISA_AVX512) || defined(LAB_ISA_AVX2)
#include <immintrin.h>
#endif

namespace labkernels::LAB_ISA {

constexpr int64_t LANES = 16;

#if defined(__GNUC__)
static inline void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
#else
static inline void prefetch_l2(const void*) {}
#endif

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

#if defined(LAB_ISA_AVX512)

struct vec {
    __m512 v;
};
static inline __mmask16 first(int64_t n) { return (__mmask16)((1u << n) - 1); }
static inline vec set1(float x) { return {_mm512_set1_ps(x)}; }
static inline vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline vec load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }  // other lanes 0
static inline void store(float* p, vec a) { _mm512_storeu_ps(p, a.v); }
static inline void store_n(float* p, vec a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a.v); }
static inline void stream(float* p, vec a) { _mm512_stream_ps(p, a.v); }  // past the caches; p on a multiple of 64 bytes
static inline vec operator+(vec a, vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline vec operator-(vec a, vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline vec operator*(vec a, vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline vec operator/(vec a, vec b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline vec max(vec a, vec b) { return {_mm512_max_ps(a.v, b.v)}; }  // a > b ? a : b, so a NaN in b stays
static inline vec min(vec a, vec b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline vec fma(vec a, vec b, vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline vec zero_below(vec a, vec x, float least) {
    return {_mm512_mask_mov_ps(a.v, _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_LT_OQ), _mm512_setzero_ps())};
}
static inline vec four_each(const float* a, const float* b, const float* c, const float* d) {  // lanes 0-3 from a, 4-7 from b, ...
    __m512 v = _mm512_broadcast_f32x4(_mm_loadu_ps(a));
    v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(b));
    v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(c));
    return {_mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(d))};
}
static inline vec unpack_low(vec a, vec b) { return {_mm512_unpacklo_ps(a.v, b.v)}; }  // of each four: a0 b0 a1 b1
static inline vec unpack_high(vec a, vec b) { return {_mm512_unpackhi_ps(a.v, b.v)}; }  // a2 b2 a3 b3
static inline vec pairs_low(vec a, vec b) {  // a0 a1 b0 b1
    return {_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a.v), _mm512_castps_pd(b.v)))};
}
static inline vec pairs_high(vec a, vec b) {  // a2 a3 b2 b3
    return {_mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a.v), _mm512_castps_pd(b.v)))};
}
static inline vec pow2_of(vec z, int32_t bias) {  // the float whose exponent field is (bits of z + bias)
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(z.v), _mm512_set1_epi32(bias)), 23))};
}

#elif defined(LAB_ISA_AVX2)

struct vec {
    __m256 a, b;
};
static inline __m256i first(int64_t n) {  // n of 8 lanes, for n below 0 none, above 8 all
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline vec load_n(const float* p, int64_t n) {
    return {_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p + 8, first(n - 8))};
}
static inline void store(float* p, vec x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline void store_n(float* p, vec x, int64_t n) {
    _mm256_maskstore_ps(p, first(n), x.a);
    _mm256_maskstore_ps(p + 8, first(n - 8), x.b);
}
static inline void stream(float* p, vec x) {
    _mm256_stream_ps(p, x.a);
    _mm256_stream_ps(p + 8, x.b);
}
static inline vec four_each(const float* a, const float* b, const float* c, const float* d) {
    return {_mm256_set_m128(_mm_loadu_ps(b), _mm_loadu_ps(a)), _mm256_set_m128(_mm_loadu_ps(d), _mm_loadu_ps(c))};
}
static inline vec unpack_low(vec x, vec y) { return {_mm256_unpacklo_ps(x.a, y.a), _mm256_unpacklo_ps(x.b, y.b)}; }
static inline vec unpack_high(vec x, vec y) { return {_mm256_unpackhi_ps(x.a, y.a), _mm256_unpackhi_ps(x.b, y.b)}; }
static inline __m256 pairs_low(__m256 x, __m256 y) { return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(x), _mm256_castps_pd(y))); }
static inline __m256 pairs_high(__m256 x, __m256 y) { return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(x), _mm256_castps_pd(y))); }
static inline vec pairs_low(vec x, vec y) { return {pairs_low(x.a, y.a), pairs_low(x.b, y.b)}; }
static inline vec pairs_high(vec x, vec y) { return {pairs_high(x.a, y.a), pairs_high(x.b, y.b)}; }
static inline vec operator+(vec x, vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline vec operator-(vec x, vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline vec operator*(vec x, vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline vec operator/(vec x, vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline vec max(vec x, vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline vec min(vec x, vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline vec fma(vec x, vec y, vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline vec zero_below(vec x, vec y, float least) {
    __m256 edge = _mm256_set1_ps(least);
    return {_mm256_andnot_ps(_mm256_cmp_ps(y.a, edge, _CMP_LT_OQ), x.a), _mm256_andnot_ps(_mm256_cmp_ps(y.b, edge, _CMP_LT_OQ), x.b)};
}
static inline __m256 pow2_of(__m256 z, int32_t bias) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(z), _mm256_set1_epi32(bias)), 23));
}
static inline vec pow2_of(vec z, int32_t bias) { return {pow2_of(z.a, bias), pow2_of(z.b, bias)}; }

#else  // plain: four times four floats, which compilers turn into whatever the machine has

#if defined(__GNUC__)
typedef float quad __attribute__((vector_size(16)));
#else
struct quad {
    float v[4];
};
#define LAB_QUAD(op) \
    static inline quad operator op(quad x, quad y) { return {x.v[0] op y.v[0], x.v[1] op y.v[1], x.v[2] op y.v[2], x.v[3] op y.v[3]}; }
LAB_QUAD(+) LAB_QUAD(-) LAB_QUAD(*) LAB_QUAD(/)
#undef LAB_QUAD
#endif
struct vec {
    quad a, b, c, d;
};
static inline quad load4(const float* p) { quad r; memcpy(&r, p, sizeof r); return r; }
static inline vec load(const float* p) { return {load4(p), load4(p + 4), load4(p + 8), load4(p + 12)}; }
static inline void store(float* p, vec x) {
    memcpy(p, &x.a, sizeof x.a);
    memcpy(p + 4, &x.b, sizeof x.b);
    memcpy(p + 8, &x.c, sizeof x.c);
    memcpy(p + 12, &x.d, sizeof x.d);
}
static inline vec operator+(vec x, vec y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
static inline vec operator-(vec x, vec y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
static inline vec operator*(vec x, vec y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
static inline vec operator/(vec x, vec y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
static inline vec fma(vec x, vec y, vec z) { return x * y + z; }  // apart: -ffp-contract=off
// the rest lane by lane: r[i] of x[i] (and y[i])
#define LAB_EACH(expression)                          \
    float r[LANES];                                   \
    for (int i = 0; i < LANES; i++) r[i] = expression; \
    return load(r)
#define LAB_EACH_OF_TWO(x, y, expression)    \
    float p[LANES], q[LANES];                \
    store(p, x);                             \
    store(q, y);                             \
    LAB_EACH(expression)
static inline vec set1(float x) { LAB_EACH(x); }
static inline vec load_n(const float* p, int64_t n) { LAB_EACH(i < n ? p[i] : 0.0f); }
static inline void store_n(float* p, vec x, int64_t n) {
    float r[LANES];
    store(r, x);
    for (int64_t i = 0; i < n; i++) p[i] = r[i];
}
static inline void stream(float* p, vec x) { store(p, x); }
static inline vec max(vec x, vec y) { LAB_EACH_OF_TWO(x, y, p[i] > q[i] ? p[i] : q[i]); }
static inline vec min(vec x, vec y) { LAB_EACH_OF_TWO(x, y, p[i] < q[i] ? p[i] : q[i]); }
static inline vec zero_below(vec x, vec y, float least) { LAB_EACH_OF_TWO(x, y, q[i] < least ? 0.0f : p[i]); }
static inline float pow2_of(float z, int32_t bias) {
    uint32_t bits;
    memcpy(&bits, &z, 4);
    bits = (bits + (uint32_t)bias) << 23;
    memcpy(&z, &bits, 4);
    return z;
}
static inline vec pow2_of(vec x, int32_t bias) { LAB_EACH_OF_TWO(x, x, pow2_of(q[i], bias)); }
#undef LAB_EACH_OF_TWO
#undef LAB_EACH

#endif

// One multiply-add of the variant: one rounding where the vectors round once, two in the plain one.
#if defined(LAB_ISA_AVX512) || defined(LAB_ISA_AVX2)
static inline float fma1(float a, float b, float c) { return fmaf(a, b, c); }
static inline double fma1(double a, double b, double c) { return ::fma(a, b, c); }
#else
static inline float fma1(float a, float b, float c) { return a * b + c; }
static inline double fma1(double a, double b, double c) { return a * b + c; }
#endif

// The one tree: lane i meets lane i + 8, then i + 4, i + 2, i + 1.
#if defined(LAB_ISA_AVX512) || defined(LAB_ISA_AVX2)
template <class Meet>
static inline float down_the_tree(__m256 halves, const Meet& meet) {
    __m128 t = meet(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    t = meet(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(meet(t, _mm_movehdup_ps(t)));
}
#if defined(LAB_ISA_AVX512)
static inline __m256 low_half(vec a) { return _mm512_castps512_ps256(a.v); }
static inline __m256 high_half(vec a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
static inline __m256 low_half(vec x) { return x.a; }
static inline __m256 high_half(vec x) { return x.b; }
#endif
static inline float sum(vec a) {
    return down_the_tree(_mm256_add_ps(low_half(a), high_half(a)), [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
}
static inline float largest(vec a) {
    return down_the_tree(_mm256_max_ps(low_half(a), high_half(a)), [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
}
#else
static inline float sum(vec a) {
    float t[LANES];
    store(t, a);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) t[i] += t[i + width];
    return t[0];
}
static inline float largest(vec a) {
    float t[LANES];
    store(t, a);
    float m = t[0];
    for (int i = 1; i < LANES; i++) m = t[i] > m ? t[i] : m;
    return m;
}
#endif

// exp by 2^n e^r with |r| <= ln2 / 2 and a polynomial of degree 6 (Cephes expf): within 2 ulp. Exactly 1 at 0, exactly 0
// below -87.3 (so a masked key of -inf weighs nothing), saturated above 88. A NaN stays a NaN.
static inline vec exp(vec x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number, left in the low bits
    const int32_t magic_bits = 0x4B400000;
    vec c = min(set1(88.0f), max(set1(-87.3f), x));
    vec z = fma(c, set1(1.44269504088896341f), set1(magic));
    vec n = z - set1(magic);
    vec r = fma(n, set1(-0.693359375f), c);
    r = fma(n, set1(2.12194440e-4f), r);
    vec p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p * r, r, r) + set1(1.0f);
    return zero_below(p * pow2_of(z, 127 - magic_bits), x, -87.3f);
}
static inline float exp1(float x) {
    float t[LANES];
    store(t, exp(set1(x)));
    return t[0];
}

}  // namespace labkernels::LAB_ISA
