/* Sixteen floats as one vector. AVX-512 has them in one register, AVX2 in two; both add up a vector in the same order,
 * so that a result does not depend on the processor. */
#ifndef CLEARHEAD_VECTORS_H
#define CLEARHEAD_VECTORS_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__

typedef __m512 vec;

INLINE vec vec_set(float x) { return _mm512_set1_ps(x); }
INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); } /* a b + c */
INLINE vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec vec_abs(vec a) { return _mm512_abs_ps(a); }
INLINE vec vec_round(vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vec vec_from_int(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
INLINE __m256 vec_low(vec a) { return _mm512_castps512_ps256(a); }
INLINE __m256 vec_high(vec a) { return _mm512_extractf32x8_ps(a, 1); }
/* 2^a for an integral a in [-126, 127] */
INLINE vec vec_pow2(vec a) {
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}

#else

typedef struct {
    __m256 low, high;
} vec;

#define BOTH(f) ((vec){f(a.low, b.low), f(a.high, b.high)})

INLINE vec vec_set(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec vec_load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void vec_store(float *p, vec x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
INLINE vec vec_add(vec a, vec b) { return BOTH(_mm256_add_ps); }
INLINE vec vec_sub(vec a, vec b) { return BOTH(_mm256_sub_ps); }
INLINE vec vec_mul(vec a, vec b) { return BOTH(_mm256_mul_ps); }
INLINE vec vec_div(vec a, vec b) { return BOTH(_mm256_div_ps); }
INLINE vec vec_fma(vec a, vec b, vec c) {
    return (vec){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
INLINE vec vec_min(vec a, vec b) { return BOTH(_mm256_min_ps); }
INLINE vec vec_max(vec a, vec b) { return BOTH(_mm256_max_ps); }
INLINE vec vec_abs(vec b) {
    vec a = vec_set(-0.0f);
    return BOTH(_mm256_andnot_ps);
}
INLINE vec vec_round(vec a) {
    return (vec){_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
INLINE vec vec_from_int(const int32_t *p) {
    return (vec){_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)p)),
                 _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(p + 8)))};
}
INLINE __m256 vec_low(vec a) { return a.low; }
INLINE __m256 vec_high(vec a) { return a.high; }
INLINE __m256 pow2_half(__m256 a) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
INLINE vec vec_pow2(vec a) { return (vec){pow2_half(a.low), pow2_half(a.high)}; }

#endif

/* Sixteen bfloat16 values are the upper halves of sixteen floats; a float is rounded to nearest, ties to even. */
#ifdef __AVX512F__

INLINE vec half_load(const uint16_t *p) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
INLINE void half_store(uint16_t *p, vec x) {
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

#else

INLINE __m256 half_load_eight(const uint16_t *p) {
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
INLINE vec half_load(const uint16_t *p) { return (vec){half_load_eight(p), half_load_eight(p + 8)}; }
INLINE __m256i half_bits(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
}
INLINE void half_store(uint16_t *p, vec x) {
    __m256i packed = _mm256_packus_epi32(half_bits(x.low), half_bits(x.high));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xD8));
}

#endif

INLINE float eight_sum(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float vec_sum(vec x) { return eight_sum(_mm256_add_ps(vec_low(x), vec_high(x))); }
INLINE float vec_largest(vec x) {
    __m256 eight = _mm256_max_ps(vec_low(x), vec_high(x));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Of two arguments of minimum and maximum, a NaN is returned if it is the second. */

/* e^x to 3e-7 relative, with x limited to [-87, 88]; NaN for NaN. x = n ln 2 + r, and e^r is a Taylor polynomial (Cephes, expf). */
INLINE vec vec_exp(vec x) {
    x = vec_min(vec_set(88.0f), vec_max(vec_set(-87.0f), x));
    vec n = vec_round(vec_mul(x, vec_set(1.44269504f)));
    vec r = vec_fma(n, vec_set(-0.693359375f), x);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec y = vec_set(1.9875691500e-4f);
    y = vec_fma(y, r, vec_set(1.3981999507e-3f));
    y = vec_fma(y, r, vec_set(8.3334519073e-3f));
    y = vec_fma(y, r, vec_set(4.1665795894e-2f));
    y = vec_fma(y, r, vec_set(1.6666665459e-1f));
    y = vec_fma(y, r, vec_set(5.0000001201e-1f));
    y = vec_fma(y, vec_mul(r, r), vec_add(r, vec_set(1.0f)));
    return vec_mul(y, vec_pow2(n));
}

#endif
