// Sixteen lanes of int32, and the one product that int8 arithmetic lives on: each lane adds four products of bytes.
//
//   avx512  vpdpbusd: 64 multiply-adds an instruction, of unsigned by signed bytes. Signed weights are lifted by 128 on load,
//           and the chain begins at -128 * (sum of x), which takes it out again: exact, as integers are.
//   avx2    vpmaddubsw + vpmaddwd. The first adds two products in int16 and would saturate at 2 * 255 * 127: so weights enter
//           as |w| <= 128 and their sign moves to x, and 2 * 128 * 127 fits.
//   plain   a loop.
//
// Integer sums have no rounding, so all variants give the same bits whatever their order.
#pragma once
#include "labkernels/rows.hpp"

namespace labkernels::LAB_ISA {

static inline int32_t load_i32(const void* p) {
    int32_t x;
    memcpy(&x, p, 4);
    return x;
}

#if defined(LAB_ISA_AVX512)

constexpr int32_t LIFT = 128;  // what load_signed adds to a weight
struct ints {
    __m512i v;
};
static inline ints splat(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline ints load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }  // 16 lanes of 4 bytes
static inline ints load_signed(const uint8_t* p) { return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80))}; }
static inline ints low_nibbles(ints x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
static inline ints high_nibbles(ints x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
static inline ints dot4(ints acc, ints w, ints x) { return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)}; }  // w in [0, 255], x in [-127, 127]
static inline ints dot4_signed(ints acc, ints w, ints x) { return dot4(acc, w, x); }
static inline vec to_float(ints x) { return {_mm512_cvtepi32_ps(x.v)}; }
static inline vec load_half(const uint8_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
static inline ints magnitude_bits(vec x) { return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff))}; }
static inline ints max(ints a, ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
static inline int32_t largest(ints a) { return _mm512_reduce_max_epi32(a.v); }
static inline ints operator+(ints a, ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline int32_t sum(ints a) { return _mm512_reduce_add_epi32(a.v); }
static inline ints rounded(vec x) { return {_mm512_cvtps_epi32(x.v)}; }  // halves to even
static inline void store_bytes(int8_t* p, ints a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

#elif defined(LAB_ISA_AVX2)

constexpr int32_t LIFT = 0;
struct ints {
    __m256i a, b;
};
static inline ints splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline ints load_bytes(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))}; }
static inline ints load_signed(const uint8_t* p) { return load_bytes(p); }
static inline ints low_nibbles(ints x) { return {_mm256_and_si256(x.a, _mm256_set1_epi8(15)), _mm256_and_si256(x.b, _mm256_set1_epi8(15))}; }
static inline ints high_nibbles(ints x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
static inline __m256i dot4(__m256i acc, __m256i w, __m256i x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
static inline ints dot4(ints acc, ints w, ints x) { return {dot4(acc.a, w.a, x.a), dot4(acc.b, w.b, x.b)}; }  // w in [0, 128]
static inline ints dot4_signed(ints acc, ints w, ints x) {
    return {dot4(acc.a, _mm256_abs_epi8(w.a), _mm256_sign_epi8(x.a, w.a)), dot4(acc.b, _mm256_abs_epi8(w.b), _mm256_sign_epi8(x.b, w.b))};
}
static inline vec to_float(ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline vec load_half(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
static inline ints magnitude_bits(vec x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_and_si256(_mm256_castps_si256(x.a), mask), _mm256_and_si256(_mm256_castps_si256(x.b), mask)};
}
static inline ints max(ints x, ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
static inline ints operator+(ints x, ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline ints rounded(vec x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
static inline void store(int32_t* p, ints x) {
    _mm256_storeu_si256((__m256i*)p, x.a);
    _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}

#else  // plain

constexpr int32_t LIFT = 0;
struct ints {
    int32_t v[LANES];
};
#define LAB_EACH_INT(expression)                        \
    ints r;                                             \
    for (int i = 0; i < LANES; i++) r.v[i] = expression; \
    return r
static inline ints splat(int32_t x) { LAB_EACH_INT(x); }
static inline ints load_bytes(const uint8_t* p) { LAB_EACH_INT(load_i32(p + 4 * i)); }
static inline ints load_signed(const uint8_t* p) { return load_bytes(p); }
static inline ints low_nibbles(ints x) { LAB_EACH_INT(x.v[i] & 0x0f0f0f0f); }
static inline ints high_nibbles(ints x) { LAB_EACH_INT((int32_t)((uint32_t)x.v[i] >> 4 & 0x0f0f0f0f)); }
static inline ints dot4_signed(ints acc, ints w, ints x) {
    const int8_t *p = (const int8_t*)w.v, *q = (const int8_t*)x.v;
    LAB_EACH_INT(acc.v[i] + p[4 * i] * q[4 * i] + p[4 * i + 1] * q[4 * i + 1] + p[4 * i + 2] * q[4 * i + 2] + p[4 * i + 3] * q[4 * i + 3]);
}
static inline ints dot4(ints acc, ints w, ints x) { return dot4_signed(acc, w, x); }  // w in [0, 127]
static inline ints max(ints x, ints y) { LAB_EACH_INT(x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
static inline ints operator+(ints x, ints y) { LAB_EACH_INT(x.v[i] + y.v[i]); }
static inline ints magnitude_bits(vec x) {
    int32_t bits[LANES];
    memcpy(bits, &x, sizeof bits);
    LAB_EACH_INT(bits[i] & 0x7fffffff);
}
static inline vec to_float(ints x) {
    float r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = (float)x.v[i];
    return load(r);
}
static inline ints rounded(vec x) {  // adding 1.5 * 2^23 rounds halves to even and leaves the number in the low bits
    int32_t bits[LANES];
    x = x + set1(12582912.0f);
    memcpy(bits, &x, sizeof bits);
    LAB_EACH_INT(bits[i] - 0x4B400000);
}
static inline void store(int32_t* p, ints x) { memcpy(p, x.v, sizeof x.v); }
#undef LAB_EACH_INT
static inline vec load_half(const uint8_t* p) {
    float r[LANES];
    for (int i = 0; i < LANES; i++) {
        const uint32_t h = p[2 * i] | p[2 * i + 1] << 8;
        uint32_t bits = (h & 0x7fff) << 13;  // exponent and fraction in place; 2^112 mends the bias, of subnormals too
        float value;
        memcpy(&value, &bits, 4);
        value *= 5.192296858534828e33f;
        memcpy(&bits, &value, 4);
        bits |= (h & 0x8000) << 16 | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u);
        memcpy(&r[i], &bits, 4);
    }
    return load(r);
}

#endif

#if !defined(LAB_ISA_AVX512)
static inline int32_t largest(ints a) {
    int32_t t[LANES], m = 0;
    store(t, a);
    for (int i = 0; i < LANES; i++) m = t[i] > m ? t[i] : m;
    return m;
}
static inline int32_t sum(ints a) {
    int32_t t[LANES], total = 0;
    store(t, a);
    for (int i = 0; i < LANES; i++) total += t[i];
    return total;
}
static inline void store_bytes(int8_t* p, ints a) {
    int32_t t[LANES];
    store(t, a);
    for (int i = 0; i < LANES; i++) p[i] = (int8_t)t[i];
}
#endif

}  // namespace labkernels::LAB_ISA
