/* Kernels of training: dropout, alone and before a residual sum and its layer norm; and cross-entropy. */
#ifndef CLEARHEAD_TRAINING_H
#define CLEARHEAD_TRAINING_H

#include <math.h>
#include <string.h>

#include "vectors.h"

/* Dropout. Element i of a call is kept if a hash of i and of the call's seed is less than `bound`. The backward pass computes
 * the hash again, so that no mask is stored, and a result depends on neither threads nor instruction set. */

typedef struct {
    uint64_t seed;
    uint32_t bound; /* of the 2^32 values of the hash; 0 keeps all */
    float scale;    /* of what is kept */
} Dropout;

/* Two rounds of Wellons's lowbias32, the first on the index with one half of the seed, the second with the other half. */
#define HASH_ROUND(x) \
    x = XOR_SHIFT(x, 16); \
    x = TIMES(x, 0x7feb352dU); \
    x = XOR_SHIFT(x, 15); \
    x = TIMES(x, 0x846ca68bU); \
    x = XOR_SHIFT(x, 16)

#ifdef __AVX512F__

#define XOR_SHIFT(x, bits) _mm512_xor_si512(x, _mm512_srli_epi32(x, bits))
#define TIMES(x, factor) _mm512_mullo_epi32(x, _mm512_set1_epi32((int)(factor)))

/* Zeros in place of the dropped ones of sixteen elements from `index` on, the others scaled. */
INLINE vec dropped(const Dropout *d, uint64_t index, vec x) {
    if (!d->bound) return x;
    __m512i h = _mm512_add_epi32(_mm512_set1_epi32((int)(uint32_t)index), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    h = _mm512_xor_si512(h, _mm512_set1_epi32((int)(uint32_t)d->seed));
    HASH_ROUND(h);
    h = _mm512_add_epi32(h, _mm512_set1_epi32((int)(uint32_t)((d->seed >> 32) + (index >> 32))));
    HASH_ROUND(h);
    __mmask16 kept = _mm512_cmplt_epu32_mask(h, _mm512_set1_epi32((int)d->bound));
    return _mm512_maskz_mul_ps(kept, x, _mm512_set1_ps(d->scale));
}

#else

#define XOR_SHIFT(x, bits) _mm256_xor_si256(x, _mm256_srli_epi32(x, bits))
#define TIMES(x, factor) _mm256_mullo_epi32(x, _mm256_set1_epi32((int)(factor)))

INLINE __m256 dropped_eight(const Dropout *d, uint64_t index, __m256 x) {
    __m256i h = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)index), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    h = _mm256_xor_si256(h, _mm256_set1_epi32((int)(uint32_t)d->seed));
    HASH_ROUND(h);
    h = _mm256_add_epi32(h, _mm256_set1_epi32((int)(uint32_t)((d->seed >> 32) + (index >> 32))));
    HASH_ROUND(h);
    /* AVX2 compares signed integers only */
    __m256i sign = _mm256_set1_epi32((int)0x80000000U);
    __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(d->bound ^ 0x80000000U)), _mm256_xor_si256(h, sign));
    return _mm256_and_ps(_mm256_castsi256_ps(kept), _mm256_mul_ps(x, _mm256_set1_ps(d->scale)));
}
INLINE vec dropped(const Dropout *d, uint64_t index, vec x) {
    if (!d->bound) return x;
    return (vec){dropped_eight(d, index, x.low), dropped_eight(d, index + 8, x.high)};
}

#endif

/* Elements of float32 or bfloat16. */
INLINE vec any_load(const void *x, int is_half, size_t i) {
    return is_half ? half_load((const uint16_t *)x + i) : vec_load((const float *)x + i);
}
INLINE void any_store(void *y, int is_half, size_t i, vec value) {
    if (is_half) half_store((uint16_t *)y + i, value);
    else vec_store((float *)y + i, value);
}

/* `count` elements from `first` on, of which the last ones may be less than a vector. */
INLINE void drop_range(const Dropout *d, const void *x, int is_half, size_t first, size_t end, void *y) {
    size_t i = first;
    for (; i + LANES <= end; i += LANES) any_store(y, is_half, i, dropped(d, i, any_load(x, is_half, i)));
    if (i < end) {
        const size_t size = is_half ? sizeof(uint16_t) : sizeof(float), bytes = (end - i) * size;
        float last[LANES] = {0};
        memcpy(last, (const char *)x + i * size, bytes);
        any_store(last, is_half, 0, dropped(d, i, any_load(last, is_half, 0)));
        memcpy((char *)y + i * size, last, bytes);
    }
}

/* One row of LN(x + drop(change)): writes the sum, the normal form and 1 / standard deviation. `width` is a multiple of LANES. */
INLINE void drop_add_norm_row(const Dropout *d, const float *x, const void *change, int is_half, size_t offset, int width,
                              const float *weight, const float *bias, float eps, float *y, float *normal, float *inverse) {
    vec total = vec_set(0), squares = vec_set(0);
    for (int i = 0; i < width; i += LANES) {
        vec sum = vec_add(vec_load(x + offset + i), dropped(d, offset + i, any_load(change, is_half, offset + i)));
        vec_store(normal + offset + i, sum);
        total = vec_add(total, sum);
    }
    const vec mean = vec_set(vec_sum(total) / width);
    for (int i = 0; i < width; i += LANES) {
        vec centered = vec_sub(vec_load(normal + offset + i), mean);
        squares = vec_fma(centered, centered, squares);
    }
    *inverse = 1 / sqrtf(vec_sum(squares) / width + eps);
    const vec factor = vec_set(*inverse);
    for (int i = 0; i < width; i += LANES) {
        vec value = vec_mul(vec_sub(vec_load(normal + offset + i), mean), factor);
        vec_store(normal + offset + i, value);
        vec_store(y + offset + i, vec_fma(value, vec_load(weight + i), vec_load(bias + i)));
    }
}

/* Gradients of one row: of x, of the change, and, added to sums, of weight and bias. */
INLINE void drop_add_norm_row_backward(const Dropout *d, const float *gradient, const float *normal, float inverse,
                                       size_t offset, int width, const float *weight, float *d_x, void *d_change, int is_half,
                                       float *d_weight, float *d_bias) {
    vec total = vec_set(0), product = vec_set(0);
    for (int i = 0; i < width; i += LANES) {
        vec g = vec_load(gradient + offset + i), n = vec_load(normal + offset + i), scaled = vec_mul(g, vec_load(weight + i));
        vec_store(d_weight + i, vec_fma(g, n, vec_load(d_weight + i)));
        vec_store(d_bias + i, vec_add(g, vec_load(d_bias + i)));
        total = vec_add(total, scaled);
        product = vec_fma(scaled, n, product);
    }
    const vec mean = vec_set(vec_sum(total) / width), slope = vec_set(-vec_sum(product) / width), factor = vec_set(inverse);
    for (int i = 0; i < width; i += LANES) {
        vec scaled = vec_sub(vec_mul(vec_load(gradient + offset + i), vec_load(weight + i)), mean);
        vec value = vec_mul(vec_fma(vec_load(normal + offset + i), slope, scaled), factor);
        vec_store(d_x + offset + i, value);
        any_store(d_change, is_half, offset + i, dropped(d, offset + i, value));
    }
}

/* Cross-entropy over a vocabulary with label smoothing, and the gradient of its logits.
 *
 * With p = softmax(x) and the target distribution q = (1 - e) onehot(t) + e / V, the loss of a position is
 * log sum exp(x) - (1 - e) x_t - e / V sum(x), and its gradient p - q replaces the logits. */

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
