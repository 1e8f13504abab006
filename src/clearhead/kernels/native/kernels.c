/* The functions that Python calls. This file is compiled once for each instruction set, whose name is ISA. */

#include "decoder.h"
#include "search.h"
#include "training.h"

#define JOIN(name, isa) name##_##isa
#define EXPAND(name, isa) JOIN(name, isa)
#define PUBLIC(name) __attribute__((visibility("default"))) int32_t EXPAND(name, ISA)

enum { OUT_OF_MEMORY = 1 };

/* Codes, scales and outliers of rows of x, as `linear` uses them; codes are written as int16 without the zero point. */
PUBLIC(quantize)(const Linear *w, const float *x, int32_t rows, int16_t *codes, float *scales, float *outliers) {
    code *row = scratch((size_t)w->in * sizeof(code));
    if (!row) return OUT_OF_MEMORY;
    for (int r = 0; r < rows; r++) {
        quantize_row(w, x + (size_t)r * w->in, row, scales + r, outliers + (size_t)r * MAX_OUTLIERS);
        for (int k = 0; k < w->in; k++)
            codes[(size_t)r * w->in + k] = (int16_t)(row[k] - (w->is_unsigned ? 0 : ZERO_POINT));
    }
    return 0;
}

/* y = act(x Wᵀ + b): x (rows, K) and y (rows, N) in float32. Threads share the rows; if these are few, the columns. */
PUBLIC(linear)(const Linear *w, int32_t activation, const float *x, int32_t rows, float *y, int32_t threads) {
    if (rows < 1) return 0;
    const int blocks = (rows + BLOCK - 1) / BLOCK, parts = (threads + blocks - 1) / blocks;
    const int groups = w->out / GROUP, per_part = (groups + parts - 1) / parts * GROUP;
    int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(| : failed)
    for (int job = 0; job < blocks * parts; job++) {
        const int first = job / parts * BLOCK, count = rows - first < BLOCK ? rows - first : BLOCK;
        const int column = job % parts * per_part, end = column + per_part < w->out ? column + per_part : w->out;
        const size_t floats = (size_t)BLOCK * (MAX_OUTLIERS + 1);
        char *next = scratch(floats * sizeof(float) + (size_t)BLOCK * w->in * sizeof(code) + 4 * 64);
        if (!next) {
            failed = 1;
            continue;
        }
        Quantized space;
        TAKE(space.scales, BLOCK);
        TAKE(space.outliers, BLOCK * MAX_OUTLIERS);
        TAKE(space.codes, BLOCK * w->in);
        quantize_rows(w, x + (size_t)first * w->in, count, space);
        if (column < end)
            multiply(w, activation, column, end, space.codes, space.scales, space.outliers, count,
                     y + (size_t)first * w->out, w->out);
    }
    return failed ? OUT_OF_MEMORY : 0;
}

/* y = GELU(x), to 4e-7; x and y may be the same. */
PUBLIC(gelu)(const float *x, int64_t count, float *y, int32_t threads) {
    const int64_t part = 1 << 14;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < count; first += part) {
        const int64_t end = first + part < count ? first + part : count, whole = end - (end - first) % LANES;
        for (int64_t i = first; i < whole; i += LANES) vec_store(y + i, gelu_float32(vec_load(x + i)));
        if (whole < end) {
            float last[LANES] = {0};
            memcpy(last, x + whole, (size_t)(end - whole) * sizeof(float));
            vec_store(last, gelu_float32(vec_load(last)));
            memcpy(y + whole, last, (size_t)(end - whole) * sizeof(float));
        }
    }
    return 0;
}

/* The loss of each position, and in place of its logits (rows, size) their gradient. Targets are of [0, size). */
PUBLIC(cross_entropy)(void *logits, int32_t is_half, const float *bias, int64_t rows, int32_t size,
                      const int64_t *targets, float smoothing, float *losses, int32_t threads) {
    const int whole = (size + LANES - 1) / LANES * LANES;
    const size_t row_bytes = (size_t)size * (is_half ? sizeof(uint16_t) : sizeof(float));
    int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : failed)
    for (int64_t r = 0; r < rows; r++) {
        float *x;
        char *next = scratch((size_t)whole * sizeof(float) + 64), *row = (char *)logits + (size_t)r * row_bytes;
        if (!next) {
            failed = 1;
            continue;
        }
        TAKE(x, whole);
        load_position(row, is_half, bias, size, whole, x);
        losses[r] = position_loss(x, whole, size, targets[r], smoothing);
        store_position(row, is_half, size, x);
    }
    return failed ? OUT_OF_MEMORY : 0;
}

/* y = dropout of `count` elements of x, in float32 or bfloat16; x and y may be the same. */
PUBLIC(dropout)(const Dropout *dropout, const void *x, int32_t is_half, int64_t count, void *y, int32_t threads) {
    const int64_t part = 1 << 13;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < count; first += part)
        drop_range(dropout, x, is_half, (size_t)first, (size_t)(first + part < count ? first + part : count), y);
    return 0;
}

/* y = LN(x + dropout(change)) of rows in float32; the change may be bfloat16. For the backward pass, `normal` (rows, width)
 * gets the rows before weight and bias, `inverse` (rows) their 1 / standard deviation. */
PUBLIC(drop_add_norm)(const Dropout *dropout, const float *x, const void *change, int32_t is_half, int64_t rows, int32_t width,
                      const float *weight, const float *bias, float eps, float *y, float *normal, float *inverse,
                      int32_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        drop_add_norm_row(dropout, x, change, is_half, (size_t)r * width, width, weight, bias, eps, y, normal, inverse + r);
    return 0;
}

/* Gradients of `drop_add_norm`; those of weight and bias are sums over the rows, (threads, 2, width), which are 0 before. */
PUBLIC(drop_add_norm_backward)(const Dropout *dropout, const float *gradient, const float *normal, const float *inverse,
                               int64_t rows, int32_t width, const float *weight, float *d_x, void *d_change, int32_t is_half,
                               float *sums, int32_t threads) {
    const int64_t share = (rows + threads - 1) / threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int32_t t = 0; t < threads; t++) {
        float *d_weight = sums + (size_t)t * 2 * width, *d_bias = d_weight + width;
        for (int64_t r = t * share; r < rows && r < (t + 1) * share; r++)
            drop_add_norm_row_backward(dropout, gradient, normal, inverse[r], (size_t)r * width, width, weight, d_x, d_change,
                                       is_half, d_weight, d_bias);
    }
    return 0;
}

/* Attention of each head within packed sequences. A token's q, k or v is `stride` floats after that of the token before, a
 * head's `head_stride` floats after that of the head before; values are (T, heads, width). Threads share the heads. */
PUBLIC(attention)(const float *q, const float *k, const float *v, int32_t stride, int32_t head_stride,
                  const int32_t *lengths, int32_t sequences, int32_t heads, int32_t width, float scale, float *values,
                  int32_t threads) {
    size_t *start = malloc(((size_t)sequences + 1) * sizeof(size_t));
    int longest = 0, failed = !start;
    for (int s = 0; s < sequences && !failed; s++) {
        start[s] = s ? start[s - 1] + lengths[s - 1] : 0;
        if (lengths[s] > longest) longest = lengths[s];
    }
    const int jobs = failed ? 0 : sequences * heads, padded = (longest + LANES - 1) / LANES * LANES;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) reduction(| : failed)
    for (int job = 0; job < jobs; job++) {
        const int s = job / heads, head = job % heads;
        const size_t first = start[s] * stride + (size_t)head * head_stride;
        float *keys, *weights;
        char *next = scratch((size_t)padded * (width + QUERIES) * sizeof(float) + 2 * 64);
        if (!next) {
            failed = 1;
            continue;
        }
        TAKE(keys, padded * width);
        TAKE(weights, padded * QUERIES);
        attend(q + first, k + first, v + first, lengths[s], stride, width, scale, keys, weights,
               values + start[s] * heads * width + (size_t)head * width, heads * width);
    }
    free(start);
    return failed ? OUT_OF_MEMORY : 0;
}

/* An encoder layer over packed sequences: x and y (rows, D) in float32. Threads share the sequences. */
PUBLIC(encoder_layer)(const EncoderLayer *layer, const float *x, const int32_t *lengths, int32_t sequences, float *y,
                      int32_t threads) {
    int *first = malloc(((size_t)sequences + 1) * sizeof(int)), *row = malloc(((size_t)sequences + 1) * sizeof(int));
    int jobs = 0, rows = 0, failed = !first || !row;
    for (int s = 0; s < sequences && !failed; s++) { /* each job has whole sequences of BLOCK rows, or one that is longer */
        if (!jobs || rows - row[jobs - 1] + lengths[s] > BLOCK) {
            first[jobs] = s;
            row[jobs++] = rows;
        }
        rows += lengths[s];
    }
    if (!failed) first[jobs] = sequences;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(| : failed)
    for (int job = 0; job < jobs; job++) {
        const size_t offset = (size_t)row[job] * layer->qkv.in;
        failed |= encode_sequences(layer, x + offset, lengths + first[job], first[job + 1] - first[job], y + offset);
    }
    free(first);
    free(row);
    return failed ? OUT_OF_MEMORY : 0;
}

/* One step of a decoder: x (rows, D) are the embedded tokens, and are overwritten. Threads share the rows. */
PUBLIC(decoder_step)(const DecoderStep *step, float *x, int32_t threads) {
    if (step->rows < 1) return 0;
    const int tiles = (step->rows + ROWS - 1) / ROWS, most = BLOCK / ROWS;
    const int share = (tiles + threads - 1) / (threads > 0 ? threads : 1), size = (share < most ? share : most) * ROWS;
    int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(| : failed)
    for (int first = 0; first < step->rows; first += size) {
        const int rows = step->rows - first < size ? step->rows - first : size;
        failed |= decode_rows(step, first, rows, x + (size_t)first * step->layers->qkv.in);
    }
    return failed ? OUT_OF_MEMORY : 0;
}

/* Upper bounds of the dot products of a query with all rows, and the largest lower bound of each SEARCH_ROWS rows. */
PUBLIC(search_bounds)(const int8_t *codes, const float *bounds, int64_t rows, int32_t width, const int16_t *query,
                      float factor, float norm, float slack, float *upper, float *lower, int32_t threads) {
    const int64_t blocks = (rows + SEARCH_ROWS - 1) / SEARCH_ROWS;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * SEARCH_ROWS, last = first + SEARCH_ROWS < rows ? first + SEARCH_ROWS : rows;
        lower[block] = search_block(codes, bounds, first, last, width, query, factor, norm, slack, upper);
    }
    return 0;
}
