/* One step of a decoder in 8 bits: the next token of each row. Attention, norms and activations are in float32. */
#ifndef CLEARHEAD_DECODER_H
#define CLEARHEAD_DECODER_H

#include "encoder.h"

typedef struct {
    Linear qkv, out, cross_q, cross_out, inner, outer;
    Norm attention_norm, cross_norm, feedforward_norm;
    int32_t heads, head_width, activation, is_pre_norm;
    float scale;
    float *keys, *values;    /* cache: rows of heads · head_width floats, one for each token of each row */
    const float *memory;     /* keys and values of the memory, side by side: (B, M, 2 heads · head_width) */
} DecoderLayer;

typedef struct {
    const DecoderLayer *layers;
    int32_t num_layers, rows, length; /* length: tokens of each row, the new one included */
    const int32_t *slots;             /* (rows, slots_stride): the cache's row of each token of each row */
    int32_t slots_stride;
    const int32_t *memory_rows;       /* (rows): the row of the memory of each row */
    const int32_t *memory_lengths;    /* (B): real tokens of each row of the memory */
    int32_t memory_length;            /* M */
    Norm final_norm;                  /* without a weight: none */
    Linear output;
    const char *output_columns;       /* columns of the output projection for `dot`; null: all tokens are allowed */
    int32_t column_bytes;
    const int32_t *extra_starts;      /* (B + 1): where the tokens of each row of the memory begin, beyond the common ones */
    const int32_t *extra_tokens;
    Linear common;                    /* the columns of the tokens that all rows may have */
    int32_t num_common;
    const int32_t *common_tokens;
    const int32_t *excluded;          /* tokens that are never chosen */
    int32_t num_excluded, is_renormalized; /* renormalized: their probabilities are 0, and the others' sum to 1 */
    int32_t count;                    /* number of best tokens of each row */
    float *best_logits;               /* (rows, count), largest first */
    int32_t *best_tokens;             /* (rows, count) */
    float *log_sums;                  /* (rows): log of the sum of the exponentials of all logits */
    float *logits;                    /* (rows, V), or null */
} DecoderStep;

#define EXCLUDED -1e30f /* the logit of a token that is never chosen */

/* Attention of one query row over `length` keys, all heads. `slots` gives the row of each key, or is null for 0, 1, ... */
static void attend_row(const DecoderLayer *layer, const float *q, const float *keys, const float *values, int stride,
                       const int32_t *slots, int length, float *weights, float *output) {
    const int padded = (length + LANES - 1) / LANES * LANES, width = layer->head_width;
    for (int head = 0; head < layer->heads; head++) {
        const int offset = head * width;
        for (int m = 0; m < length; m++) {
            const float *key = keys + (size_t)(slots ? slots[m] : m) * stride + offset;
            vec sum = vec_mul(vec_load(q + offset), vec_load(key));
            for (int d = LANES; d < width; d += LANES)
                sum = vec_fma(vec_load(q + offset + d), vec_load(key + d), sum);
            weights[m] = vec_sum(sum);
        }
        const float sum = softmax_row(weights, length, padded, layer->scale);
        for (int d = 0; d < width; d += LANES) {
            vec total = vec_set(0.0f);
            for (int m = 0; m < length; m++) {
                const float *value = values + (size_t)(slots ? slots[m] : m) * stride + offset + d;
                total = vec_fma(vec_set(weights[m]), vec_load(value), total);
            }
            vec_store(output + offset + d, vec_mul(total, vec_set(1.0f / sum)));
        }
    }
}

/* x = LN(x + change), or x += change and normal = LN of that for the sub-layer that follows */
static void residual_rows(int is_pre_norm, const Norm *norm, const Norm *next, int rows, int width, float *x,
                          const float *change, float *normal) {
    for (int r = 0; r < rows; r++) {
        float *row = x + (size_t)r * width;
        if (is_pre_norm) {
            add_rows(row, change + (size_t)r * width, width, row);
            if (next && next->weight) norm_row(next, row, NULL, width, normal + (size_t)r * width);
        } else {
            norm_row(norm, row, change + (size_t)r * width, width, row);
        }
    }
}

/* The `count` largest logits of a row, by insertion; a group without one that is large enough is skipped. */
static void best_of_row(const float *logits, int size, int count, float *best, int32_t *tokens) {
    for (int i = 0; i < count; i++) best[i] = -INFINITY, tokens[i] = 0;
    for (int start = 0; start < size; start += LANES) {
        if (!(vec_largest(vec_load(logits + start)) > best[count - 1])) continue;
        for (int n = start; n < start + LANES && n < size; n++) {
            if (!(logits[n] > best[count - 1])) continue;
            int place = count - 1;
            for (; place > 0 && logits[n] > best[place - 1]; place--)
                best[place] = best[place - 1], tokens[place] = tokens[place - 1];
            best[place] = logits[n], tokens[place] = n;
        }
    }
}

/* log Σ exp(logit); NaN if a logit is NaN or +∞ */
static float log_sum_of_row(const float *logits, int size) {
    vec sum = vec_set(0.0f), not_finite = vec_set(0.0f), most = vec_load(logits);
    for (int n = LANES; n < size; n += LANES) most = vec_max(most, vec_load(logits + n));
    const float largest = vec_largest(most);
    for (int n = 0; n < size; n += LANES) {
        const vec value = vec_load(logits + n);
        sum = vec_add(sum, vec_exp(vec_sub(value, vec_set(largest))));
        not_finite = vec_fma(value, vec_set(0.0f), not_finite);
    }
    return largest + logf(vec_sum(sum)) + vec_sum(not_finite);
}

#define AHEAD 8 /* columns that are fetched before they are used */

/* The logits of the tokens that one sentence has beyond the common ones, for `rows` rows of codes. They follow those of the
 * common tokens. */
static void extra_logits(const DecoderStep *step, const int32_t *tokens, int size, Quantized x, int rows, float *logits) {
    const Linear *output = &step->output;
    for (int i = 0; i < size; i++) {
        const char *column = step->output_columns + (size_t)tokens[i] * step->column_bytes;
        const char *ahead = step->output_columns + (size_t)tokens[i + AHEAD < size ? i + AHEAD : i] * step->column_bytes;
        for (int b = 0; b < step->column_bytes; b += 64) _mm_prefetch(ahead + b, _MM_HINT_T0);
        for (int r = 0; r < rows; r++)
            logits[(size_t)r * output->out + step->num_common + i] =
                dot(output, column, x.codes + (size_t)r * output->in, x.scales[r], x.outliers + (size_t)r * MAX_OUTLIERS);
    }
    for (int i = step->num_common + size; i % LANES; i++)
        for (int r = 0; r < rows; r++) logits[(size_t)r * output->out + i] = EXCLUDED;
}

/* Write the best tokens of a row and the normalizer of its `size` logits: of all tokens, or of the common and the extra ones. */
static void choose(const DecoderStep *step, const int32_t *extra, int size, int row, float *logits) {
    int32_t *best = step->best_tokens + (size_t)row * step->count;
    const int is_restricted = step->output_columns != NULL;
    if (!step->is_renormalized) step->log_sums[row] = log_sum_of_row(logits, size);
    for (int i = 0; i < step->num_excluded; i++) {
        const int token = step->excluded[i];
        if (!is_restricted) logits[token] = EXCLUDED;
        for (int n = 0; is_restricted && n < size; n++)
            if ((n < step->num_common ? step->common_tokens[n] : extra[n - step->num_common]) == token) logits[n] = EXCLUDED;
    }
    if (step->is_renormalized) step->log_sums[row] = log_sum_of_row(logits, size);
    best_of_row(logits, size, step->count, step->best_logits + (size_t)row * step->count, best);
    for (int i = 0; is_restricted && i < step->count; i++)
        best[i] = best[i] < step->num_common ? step->common_tokens[best[i]] : extra[best[i] - step->num_common];
}

/* Choose the best of the common and the extra tokens for rows [first, first + rows) of hidden states x. */
static void choose_allowed(const DecoderStep *step, const float *x, int first, int rows, Quantized space, float *logits) {
    const Linear *output = &step->output;
    quantize_rows(output, x, rows, space);
    multiply(&step->common, NO_ACTIVATION, 0, step->common.out, space.codes, space.scales, space.outliers, rows, logits,
             output->out);
    for (int r = 0, same; r < rows; r += same) {
        const int of_memory = step->memory_rows[first + r];
        for (same = 1; r + same < rows && step->memory_rows[first + r + same] == of_memory;) same++;
        const int32_t *extra = step->extra_tokens + step->extra_starts[of_memory];
        const int size = step->extra_starts[of_memory + 1] - step->extra_starts[of_memory];
        const Quantized codes = {space.codes + (size_t)r * output->in, space.scales + r,
                                 space.outliers + (size_t)r * MAX_OUTLIERS};
        extra_logits(step, extra, size, codes, same, logits + (size_t)r * output->out);
        for (int i = 0; i < same; i++)
            choose(step, extra, step->num_common + size, first + r + i, logits + (size_t)(r + i) * output->out);
    }
}

/* The step for rows [first, first + rows); x (rows, D) are their embedded tokens, and are overwritten. */
static int decode_rows(const DecoderStep *step, int first, int rows, float *x) {
    const DecoderLayer *layers = step->layers;
    const int width = layers->qkv.in, inner = layers->heads * layers->head_width, hidden = layers->inner.out;
    const int vocabulary = step->output.out, most = step->length > step->memory_length ? step->length : step->memory_length;
    int widest = hidden > inner ? hidden : inner;
    if (width > widest) widest = width;
    const size_t floats = (size_t)rows * (3 * inner + inner + hidden + 2 * width + MAX_OUTLIERS + 1) + most + LANES +
                          (step->logits ? 0 : (size_t)rows * vocabulary);
    char *next = scratch(floats * sizeof(float) + ((size_t)rows * widest + 64) * sizeof(code) + 16 * 64);
    if (!next) return 1;
    float *qkv, *values, *h, *change, *normal, *weights, *logits;
    Quantized space;
    TAKE(qkv, (size_t)rows * 3 * inner);
    TAKE(values, (size_t)rows * inner);
    TAKE(h, (size_t)rows * hidden);
    TAKE(change, (size_t)rows * width);
    TAKE(normal, (size_t)rows * width);
    TAKE(weights, most + LANES);
    TAKE(space.scales, rows);
    TAKE(space.outliers, (size_t)rows * MAX_OUTLIERS);
    TAKE(space.codes, (size_t)rows * widest + 64); /* `dot` reads up to a multiple of 64 bytes */
    if (step->logits)
        logits = step->logits + (size_t)first * vocabulary;
    else
        TAKE(logits, (size_t)rows * vocabulary);

    const int is_pre_norm = layers->is_pre_norm;
    const float *input = is_pre_norm ? normal : x;
    if (is_pre_norm)
        for (int r = 0; r < rows; r++)
            norm_row(&layers->attention_norm, x + (size_t)r * width, NULL, width, normal + (size_t)r * width);
    for (int l = 0; l < step->num_layers; l++) {
        const DecoderLayer *layer = layers + l;
        apply(&layer->qkv, NO_ACTIVATION, input, rows, space, qkv);
        for (int r = 0; r < rows; r++) {
            const int32_t *slots = step->slots + (size_t)(first + r) * step->slots_stride;
            const float *q = qkv + (size_t)r * 3 * inner;
            const size_t newest = (size_t)slots[step->length - 1] * inner;
            memcpy(layer->keys + newest, q + inner, inner * sizeof(float));
            memcpy(layer->values + newest, q + 2 * inner, inner * sizeof(float));
            attend_row(layer, q, layer->keys, layer->values, inner, slots, step->length, weights, values + (size_t)r * inner);
        }
        apply(&layer->out, NO_ACTIVATION, values, rows, space, change);
        residual_rows(is_pre_norm, &layer->attention_norm, &layer->cross_norm, rows, width, x, change, normal);
        apply(&layer->cross_q, NO_ACTIVATION, input, rows, space, qkv);
        for (int r = 0; r < rows; r++) {
            const int of_memory = step->memory_rows[first + r];
            const float *keys = layer->memory + (size_t)of_memory * step->memory_length * 2 * inner;
            attend_row(layer, qkv + (size_t)r * inner, keys, keys + inner, 2 * inner, NULL, step->memory_lengths[of_memory],
                       weights, values + (size_t)r * inner);
        }
        apply(&layer->cross_out, NO_ACTIVATION, values, rows, space, change);
        residual_rows(is_pre_norm, &layer->cross_norm, &layer->feedforward_norm, rows, width, x, change, normal);
        apply(&layer->inner, layer->activation, input, rows, space, h);
        apply(&layer->outer, NO_ACTIVATION, h, rows, space, change);
        const Norm *following = l + 1 < step->num_layers ? &layer[1].attention_norm : &step->final_norm;
        residual_rows(is_pre_norm, &layer->feedforward_norm, following, rows, width, x, change, normal);
    }
    if (!step->count && !step->logits) return 0;
    if (step->final_norm.weight && !is_pre_norm)
        for (int r = 0; r < rows; r++)
            norm_row(&step->final_norm, x + (size_t)r * width, NULL, width, x + (size_t)r * width);
    const float *last = step->final_norm.weight && is_pre_norm ? normal : x;
    if (step->output_columns) {
        choose_allowed(step, last, first, rows, space, logits);
        return 0;
    }
    apply(&step->output, NO_ACTIVATION, last, rows, space, logits);
    for (int r = 0; r < rows && step->count; r++)
        choose(step, NULL, vocabulary, first + r, logits + (size_t)r * vocabulary);
    return 0;
}

#endif
