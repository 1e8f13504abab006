/* One encoder layer in 8 bits over packed sequences. Attention, norms and activations are computed in float32. */
#ifndef CLEARHEAD_ENCODER_H
#define CLEARHEAD_ENCODER_H

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "linear.h"

typedef struct {
    const float *weight, *bias; /* D values; without a bias, null */
    float eps;
} Norm;

typedef struct {
    Linear qkv, out, inner, outer;
    Norm attention_norm, feedforward_norm;
    int32_t heads, head_width, activation, is_pre_norm;
    float scale; /* of q k */
} EncoderLayer;

/* y = LN(x), y = LN(x + change) */
static void norm_row(const Norm *norm, const float *x, const float *change, int width, float *y) {
    vec sum = vec_set(0.0f), squares = vec_set(0.0f);
    for (int d = 0; d < width; d += LANES) {
        vec value = vec_load(x + d);
        if (change) value = vec_add(value, vec_load(change + d));
        vec_store(y + d, value);
        sum = vec_add(sum, value);
    }
    const vec mean = vec_set(vec_sum(sum) / width);
    for (int d = 0; d < width; d += LANES) {
        vec centered = vec_sub(vec_load(y + d), mean);
        squares = vec_fma(centered, centered, squares);
    }
    const vec inverse = vec_set(1.0f / sqrtf(vec_sum(squares) / width + norm->eps));
    for (int d = 0; d < width; d += LANES) {
        vec normal = vec_mul(vec_sub(vec_load(y + d), mean), inverse);
        vec bias = norm->bias ? vec_load(norm->bias + d) : vec_set(0.0f);
        vec_store(y + d, vec_fma(normal, vec_load(norm->weight + d), bias));
    }
}

static void add_rows(const float *x, const float *change, size_t count, float *y) {
    for (size_t i = 0; i < count; i += LANES) vec_store(y + i, vec_add(vec_load(x + i), vec_load(change + i)));
}

/* Replace scores by exp(scale (score - largest)), with zeros up to `padded`, and return their sum. */
static float softmax_row(float *scores, int length, int padded, float scale) {
    for (int m = length; m < padded; m++) scores[m] = -INFINITY;
    vec largest = vec_set(-INFINITY), sum = vec_set(0.0f);
    for (int m = 0; m < padded; m += LANES) largest = vec_max(largest, vec_load(scores + m));
    const vec shift = vec_set(-vec_largest(largest) * scale), factor = vec_set(scale);
    for (int m = 0; m < padded; m += LANES) vec_store(scores + m, vec_exp(vec_fma(vec_load(scores + m), factor, shift)));
    for (int m = length; m < padded; m++) scores[m] = 0.0f; /* the exponential is never less than e^-87 */
    for (int m = 0; m < padded; m += LANES) sum = vec_add(sum, vec_load(scores + m));
    return vec_sum(sum);
}

#define QUERIES 6

/* Attention of one head within one sequence. q, k and v are rows of `stride` floats; `keys` and `weights` are scratch
 * memory for the transposed keys and the weights of a block of queries. */
static void attend(const float *q, const float *k, const float *v, int length, int stride, int width, float scale,
                   float *keys, float *weights, float *values, int values_stride) {
    const int padded = (length + LANES - 1) / LANES * LANES;
    for (int d = 0; d < width; d++) {
        for (int m = 0; m < length; m++) keys[(size_t)d * padded + m] = k[(size_t)m * stride + d];
        for (int m = length; m < padded; m++) keys[(size_t)d * padded + m] = 0.0f;
    }
    for (int first = 0; first < length; first += QUERIES) {
        const int queries = length - first < QUERIES ? length - first : QUERIES;
        const float *row[QUERIES];
        for (int r = 0; r < QUERIES; r++) row[r] = q + (size_t)(first + (r < queries ? r : 0)) * stride;
        for (int m = 0; m < padded; m += LANES) {
            vec scores[QUERIES];
#pragma GCC unroll 8
            for (int r = 0; r < QUERIES; r++) scores[r] = vec_set(0.0f);
            for (int d = 0; d < width; d++) {
                const vec key = vec_load(keys + (size_t)d * padded + m);
#pragma GCC unroll 8
                for (int r = 0; r < QUERIES; r++) scores[r] = vec_fma(vec_set(row[r][d]), key, scores[r]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < QUERIES; r++) vec_store(weights + (size_t)r * padded + m, scores[r]);
        }
        float inverse[QUERIES];
        for (int r = 0; r < queries; r++)
            inverse[r] = 1.0f / softmax_row(weights + (size_t)r * padded, length, padded, scale);
        for (int d = 0; d < width; d += LANES) {
            vec sums[QUERIES];
#pragma GCC unroll 8
            for (int r = 0; r < QUERIES; r++) sums[r] = vec_set(0.0f);
            for (int m = 0; m < length; m++) {
                const vec value = vec_load(v + (size_t)m * stride + d);
#pragma GCC unroll 8
                for (int r = 0; r < QUERIES; r++)
                    sums[r] = vec_fma(vec_set(weights[(size_t)r * padded + m]), value, sums[r]);
            }
            for (int r = 0; r < queries; r++)
                vec_store(values + (size_t)(first + r) * values_stride + d, vec_mul(sums[r], vec_set(inverse[r])));
        }
    }
}

/* Scratch memory of a thread. It grows, is kept for the next call, and is freed when the thread ends. */
typedef struct {
    size_t size;
    void *memory;
} Block;

static pthread_key_t block_key;
static pthread_once_t block_once = PTHREAD_ONCE_INIT;

static void free_block(void *block) {
    free(((Block *)block)->memory);
    free(block);
}
static void create_block_key(void) { pthread_key_create(&block_key, free_block); }

static void *scratch(size_t bytes) {
    pthread_once(&block_once, create_block_key);
    Block *block = pthread_getspecific(block_key);
    if (!block) {
        block = calloc(1, sizeof *block);
        if (!block || pthread_setspecific(block_key, block)) {
            free(block);
            return NULL;
        }
    }
    if (bytes > block->size) {
        free(block->memory);
        block->size = (bytes + 4095) / 4096 * 4096;
        block->memory = aligned_alloc(64, block->size);
        if (!block->memory) block->size = 0;
    }
    return block->memory;
}

/* Give `count` items of scratch memory, aligned to a cache line. */
#define TAKE(pointer, count)                                          \
    do {                                                              \
        pointer = (void *)next;                                       \
        next += ((size_t)(count) * sizeof(*(pointer)) + 63) / 64 * 64; \
    } while (0)

#define BLOCK 64 /* rows whose activations are quantized and multiplied together: they stay in the second cache */

typedef struct {
    code *codes;
    float *scales, *outliers;
} Quantized;

static void quantize_rows(const Linear *w, const float *x, int rows, Quantized into) {
    for (int r = 0; r < rows; r++)
        quantize_row(w, x + (size_t)r * w->in, into.codes + (size_t)r * w->in, into.scales + r,
                     into.outliers + (size_t)r * MAX_OUTLIERS);
}

static void apply(const Linear *w, int activation, const float *x, int rows, Quantized space, float *y) {
    quantize_rows(w, x, rows, space);
    multiply(w, activation, 0, w->out, space.codes, space.scales, space.outliers, rows, y, w->out);
}

/* The layer over some whole sequences: x and y are their rows (rows, D), lengths their numbers of tokens. */
static int encode_sequences(const EncoderLayer *layer, const float *x, const int32_t *lengths, int sequences, float *y) {
    const int width = layer->qkv.in, inner = layer->heads * layer->head_width, hidden = layer->inner.out;
    int rows = 0, longest = 0;
    for (int s = 0; s < sequences; s++) {
        rows += lengths[s];
        if (lengths[s] > longest) longest = lengths[s];
    }
    const int padded = (longest + LANES - 1) / LANES * LANES;
    const int widest = hidden > inner ? (hidden > width ? hidden : width) : (inner > width ? inner : width);
    const size_t floats = (size_t)rows * (3 * inner + inner + width) + (size_t)BLOCK * (hidden + 2 * width) +
                          (size_t)padded * (layer->head_width + QUERIES) + (size_t)BLOCK * (MAX_OUTLIERS + 1);
    char *next = scratch(floats * sizeof(float) + (size_t)BLOCK * widest * sizeof(code) + 16 * 64);
    if (!next) return 1;
    float *qkv, *values, *z, *h, *change, *normal, *keys, *weights;
    Quantized space;
    TAKE(qkv, (size_t)rows * 3 * inner);
    TAKE(values, (size_t)rows * inner);
    TAKE(z, (size_t)rows * width);
    TAKE(h, BLOCK * hidden);
    TAKE(change, BLOCK * width);
    TAKE(normal, BLOCK * width);
    TAKE(keys, padded * layer->head_width);
    TAKE(weights, padded * QUERIES);
    TAKE(space.scales, BLOCK);
    TAKE(space.outliers, BLOCK * MAX_OUTLIERS);
    TAKE(space.codes, BLOCK * widest);

    for (int first = 0; first < rows; first += BLOCK) {
        const int count = rows - first < BLOCK ? rows - first : BLOCK;
        const float *input = x + (size_t)first * width;
        if (layer->is_pre_norm) {
            for (int r = 0; r < count; r++)
                norm_row(&layer->attention_norm, input + (size_t)r * width, NULL, width, normal + (size_t)r * width);
            input = normal;
        }
        apply(&layer->qkv, NO_ACTIVATION, input, count, space, qkv + (size_t)first * 3 * inner);
    }
    for (int s = 0, start = 0; s < sequences; start += lengths[s++])
        for (int head = 0; head < layer->heads; head++) {
            const float *q = qkv + (size_t)start * 3 * inner + head * layer->head_width;
            attend(q, q + inner, q + 2 * inner, lengths[s], 3 * inner, layer->head_width, layer->scale, keys, weights,
                   values + (size_t)start * inner + head * layer->head_width, inner);
        }
    for (int first = 0; first < rows; first += BLOCK) {
        const int count = rows - first < BLOCK ? rows - first : BLOCK;
        const float *input = x + (size_t)first * width;
        float *middle = z + (size_t)first * width, *output = y + (size_t)first * width;
        apply(&layer->out, NO_ACTIVATION, values + (size_t)first * inner, count, space, change);
        if (layer->is_pre_norm) {
            add_rows(input, change, (size_t)count * width, middle);
            for (int r = 0; r < count; r++)
                norm_row(&layer->feedforward_norm, middle + (size_t)r * width, NULL, width, normal + (size_t)r * width);
        } else {
            for (int r = 0; r < count; r++)
                norm_row(&layer->attention_norm, input + (size_t)r * width, change + (size_t)r * width, width,
                         middle + (size_t)r * width);
        }
        apply(&layer->inner, layer->activation, layer->is_pre_norm ? normal : middle, count, space, h);
        apply(&layer->outer, NO_ACTIVATION, h, count, space, change);
        if (layer->is_pre_norm)
            add_rows(middle, change, (size_t)count * width, output);
        else
            for (int r = 0; r < count; r++)
                norm_row(&layer->feedforward_norm, middle + (size_t)r * width, change + (size_t)r * width, width,
                         output + (size_t)r * width);
    }
    return 0;
}

#endif
