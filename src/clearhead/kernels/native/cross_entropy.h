/* Cross-entropy over a vocabulary with label smoothing, and the gradient of its logits, in training.
 *
 * With p = softmax(x) and the target distribution q = (1 - e) onehot(t) + e / V, the loss of a position is
 * log sum exp(x) - (1 - e) x_t - e / V sum(x), and its gradient p - q replaces the logits. */
#ifndef CLEARHEAD_CROSS_ENTROPY_H
#define CLEARHEAD_CROSS_ENTROPY_H

#include <math.h>

#include "vectors.h"

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

/* The loss of one position with `whole` logits in x, a multiple of LANES of which the last ones may be -infinity; `size`
 * are of the vocabulary. x becomes the gradient. */
INLINE float position_loss(float *x, int whole, int size, int64_t target, float smoothing) {
    vec largest = vec_load(x), total = vec_set(0), sum = vec_set(0);
    for (int i = LANES; i < whole; i += LANES) largest = vec_max(largest, vec_load(x + i));
    const float highest = vec_largest(largest), at_target = x[target];
    if (smoothing != 0) {
        const int full = size - size % LANES;
        for (int i = 0; i < full; i += LANES) total = vec_add(total, vec_load(x + i));
    }
    float rest = 0;
    if (smoothing != 0)
        for (int i = size - size % LANES; i < size; i++) rest += x[i];
    const vec shift = vec_set(-highest);
    for (int i = 0; i < whole; i += LANES) {
        vec e = vec_exp(vec_add(vec_load(x + i), shift));
        sum = vec_add(sum, e);
        vec_store(x + i, e);
    }
    /* the exponential of -infinity is e^-87 here, which does not change a sum of at least 1 */
    const float all = vec_sum(sum), part = smoothing / size;
    const vec inverse = vec_set(1 / all), uniform = vec_set(-part);
    for (int i = 0; i < whole; i += LANES) vec_store(x + i, vec_fma(vec_load(x + i), inverse, uniform));
    x[target] -= 1 - smoothing;
    return highest + logf(all) - (1 - smoothing) * at_target - part * (vec_sum(total) + rest);
}

/* Read `size` logits of a position, in bfloat16 or float32, with their bias, if there is one. */
INLINE void load_position(const void *logits, int is_half, const float *bias, int size, int whole, float *x) {
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        vec value = is_half ? half_load((const uint16_t *)logits + i) : vec_load((const float *)logits + i);
        vec_store(x + i, bias ? vec_add(value, vec_load(bias + i)) : value);
    }
    for (; i < size; i++) {
        union { uint32_t bits; float value; } one;
        if (is_half) one.bits = (uint32_t)((const uint16_t *)logits)[i] << 16;
        else one.value = ((const float *)logits)[i];
        x[i] = one.value + (bias ? bias[i] : 0);
    }
    for (; i < whole; i++) x[i] = -__builtin_inff();
}

INLINE void store_position(void *logits, int is_half, int size, const float *x) {
    int i = 0;
    for (; i + LANES <= size; i += LANES) {
        if (is_half) half_store((uint16_t *)logits + i, vec_load(x + i));
        else vec_store((float *)logits + i, vec_load(x + i));
    }
    if (i < size) {
        float last[LANES] = {0};
        uint16_t halves[LANES];
        for (int k = 0; i + k < size; k++) last[k] = x[i + k];
        half_store(halves, vec_load(last));
        for (int k = 0; i + k < size; k++) {
            if (is_half) ((uint16_t *)logits)[i + k] = halves[k];
            else ((float *)logits)[i + k] = last[k];
        }
    }
}

#endif
