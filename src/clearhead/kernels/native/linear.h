/* A linear layer in 8 bits: y = s_row s_col (q W_q) + x_outliers W_outliers + b.
 *
 * Each row of x is quantized with its own scale, each row of W with its own. A few columns with large values, the
 * outliers, stay in float32. Products of 8-bit integers are added up exactly in 32 bits, so a result does not depend on
 * the processor, nor on the other rows. */
#ifndef CLEARHEAD_LINEAR_H
#define CLEARHEAD_LINEAR_H

#include <string.h>

#include "vectors.h"

enum { NO_ACTIVATION, RELU, GELU, GELU_TANH, SILU };

typedef struct {
    int32_t in, out;              /* K and N, multiples of 16 */
    int32_t num_outliers;         /* J */
    int32_t is_unsigned;          /* codes of [0, 255] instead of [-127, 127] */
    float offset;                 /* added to x before it is quantized, with unsigned codes */
    const void *weight;           /* codes in the layout of this processor's product */
    const int32_t *start;         /* first value of each sum: the share of the zero point, negated */
    const float *scale;           /* s_col, N values */
    const float *bias;            /* N values; the share of the offset is subtracted */
    const float *keep;            /* K values: 0 for an outlier, else 1 */
    const int32_t *outliers;      /* columns of the outliers */
    const float *outlier_weight;  /* J rows of N values */
} Linear;

#define MAX_OUTLIERS 16
#define ROWS 6   /* rows of a tile */
#define GROUP 16 /* columns of the result that are packed together */

#if defined(__AVX512VNNI__)

/* Codes are bytes. Signed ones are stored plus 128, because the product takes unsigned bytes on the left. */
typedef uint8_t code;
#define GROUPS 4
#define PER_STEP 4
#define ZERO_POINT 128

INLINE void store_codes(code *p, vec x, int zero_point) {
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(zero_point));
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(whole));
}

typedef __m512i sum;
INLINE sum sum_load(const int32_t *p) { return _mm512_loadu_si512(p); }
INLINE void sum_store(int32_t *p, sum a) { _mm512_store_si512(p, a); }
typedef __m512i step;
INLINE step step_load(const char *p) { return _mm512_load_si512(p); }
INLINE sum sum_product(sum a, int32_t four, step w) { return _mm512_dpbusd_epi32(a, _mm512_set1_epi32(four), w); }

/* 64 codes times 64 weights, added to 16 partial sums */
INLINE sum sum_line(sum a, const code *x, const char *w) {
    return _mm512_dpbusd_epi32(a, _mm512_loadu_si512(x), _mm512_loadu_si512(w));
}
INLINE int32_t sum_total(sum a) { return _mm512_reduce_add_epi32(a); }

#elif defined(__AVXVNNI__)

typedef uint8_t code;
#define GROUPS 1
#define PER_STEP 4
#define ZERO_POINT 128

INLINE void store_codes(code *p, vec x, int zero_point) {
    __m256i add = _mm256_set1_epi32(zero_point);
    __m256i low = _mm256_add_epi32(_mm256_cvtps_epi32(x.low), add);
    __m256i high = _mm256_add_epi32(_mm256_cvtps_epi32(x.high), add);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}

typedef struct {
    __m256i low, high;
} sum;
INLINE sum sum_load(const int32_t *p) {
    return (sum){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
INLINE void sum_store(int32_t *p, sum a) {
    _mm256_store_si256((__m256i *)p, a.low);
    _mm256_store_si256((__m256i *)(p + 8), a.high);
}
typedef sum step;
INLINE step step_load(const char *p) {
    return (step){_mm256_load_si256((const __m256i *)p), _mm256_load_si256((const __m256i *)(p + 32))};
}
INLINE sum sum_product(sum a, int32_t four, step w) {
    const __m256i x = _mm256_set1_epi32(four);
    return (sum){_mm256_dpbusd_avx_epi32(a.low, x, w.low), _mm256_dpbusd_avx_epi32(a.high, x, w.high)};
}
INLINE sum sum_line(sum a, const code *x, const char *w) {
    const sum weights = sum_load((const int32_t *)w);
    return (sum){_mm256_dpbusd_avx_epi32(a.low, _mm256_loadu_si256((const __m256i *)x), weights.low),
                 _mm256_dpbusd_avx_epi32(a.high, _mm256_loadu_si256((const __m256i *)(x + 32)), weights.high)};
}

#else

/* AVX2 multiplies bytes with saturation: two products of 255 and 127 exceed 16 bits. Codes are therefore 16 bits wide. */
typedef int16_t code;
#define GROUPS 1
#define PER_STEP 2
#define ZERO_POINT 0

INLINE void store_codes(code *p, vec x, int zero_point) {
    (void)zero_point;
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(words, 0xd8));
}

typedef struct {
    __m256i low, high;
} sum;
INLINE sum sum_load(const int32_t *p) {
    return (sum){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
INLINE void sum_store(int32_t *p, sum a) {
    _mm256_store_si256((__m256i *)p, a.low);
    _mm256_store_si256((__m256i *)(p + 8), a.high);
}
typedef sum step;
INLINE step step_load(const char *p) {
    return (step){_mm256_load_si256((const __m256i *)p), _mm256_load_si256((const __m256i *)(p + 32))};
}
INLINE sum sum_product(sum a, int32_t two, step w) {
    const __m256i x = _mm256_set1_epi32(two);
    return (sum){_mm256_add_epi32(a.low, _mm256_madd_epi16(x, w.low)),
                 _mm256_add_epi32(a.high, _mm256_madd_epi16(x, w.high))};
}
INLINE sum sum_line(sum a, const code *x, const char *w) {
    const sum weights = sum_load((const int32_t *)w);
    const __m256i low = _mm256_loadu_si256((const __m256i *)x), high = _mm256_loadu_si256((const __m256i *)(x + 16));
    return (sum){_mm256_add_epi32(a.low, _mm256_madd_epi16(low, weights.low)),
                 _mm256_add_epi32(a.high, _mm256_madd_epi16(high, weights.high))};
}

#endif

#if GROUPS == 1
INLINE int32_t sum_total(sum a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
#endif

/* GELU(x) = x Φ(x), to 8e-5: Φ(x) - 1/2 as an odd polynomial of [-4.5, 4.5], fitted to the largest error of GELU. */
#define GELU_END 4.5f
#define GELU_COEFFICIENTS 9
static const float gelu_coefficients[GELU_COEFFICIENTS] = {
    3.036411747e-11f, -3.314653885e-09f, 1.590994572e-07f, -4.451724635e-06f, 8.142510342e-05f,
    -1.037590904e-03f, 9.585200809e-03f, -6.598465145e-02f, 3.987126052e-01f};

INLINE vec gelu(vec x) {
    x = vec_max(vec_set(-GELU_END), x); /* below, GELU is 0 */
    const vec t = vec_min(vec_set(GELU_END), x);
    vec square = vec_mul(t, t), y = vec_set(gelu_coefficients[0]);
    for (int i = 1; i < GELU_COEFFICIENTS; i++) y = vec_fma(y, square, vec_set(gelu_coefficients[i]));
    return vec_mul(x, vec_fma(y, t, vec_set(0.5f)));
}
/* GELU(x) = max(x, 0) - |x| erfc(|x| / √2) / 2 to 4e-7, with erfc by Abramowitz and Stegun, formula 7.1.26. */
INLINE vec gelu_float32(vec x) {
    const vec size = vec_abs(x), z = vec_mul(size, vec_set(0.7071067812f));
    const vec t = vec_div(vec_set(1.0f), vec_fma(z, vec_set(0.3275911f), vec_set(1.0f)));
    vec y = vec_fma(t, vec_set(1.061405429f), vec_set(-1.453152027f));
    y = vec_fma(y, t, vec_set(1.421413741f));
    y = vec_fma(y, t, vec_set(-0.284496736f));
    y = vec_mul(vec_fma(y, t, vec_set(0.254829592f)), t);
    y = vec_mul(y, vec_exp(vec_sub(vec_set(0.0f), vec_mul(z, z))));
    return vec_fma(vec_mul(size, vec_set(-0.5f)), y, vec_max(vec_set(0.0f), x));
}
INLINE vec silu(vec x) {
    return vec_div(x, vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_set(0.0f), x))));
}
/* x σ(2 √(2/π) (x + 0.044715 x³)), which is the tanh approximation of GELU */
INLINE vec gelu_tanh(vec x) {
    vec cubic = vec_mul(x, vec_fma(vec_mul(x, x), vec_set(0.044715f), vec_set(1.0f)));
    vec exponential = vec_exp(vec_mul(cubic, vec_set(-1.5957691216f)));
    return vec_div(x, vec_add(vec_set(1.0f), exponential));
}

INLINE vec activate(vec x, const int activation) {
    switch (activation) {
    case RELU: return vec_max(vec_set(0.0f), x);
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case SILU: return silu(x);
    default: return x;
    }
}

/* Quantize one row of K values: codes, scale and the values of the outliers. */
static void quantize_row(const Linear *w, const float *x, code *codes, float *scale, float *outliers) {
    vec offset = vec_set(w->offset), largest = vec_set(0.0f), not_finite = vec_set(0.0f);
    for (int k = 0; k < w->in; k += LANES) {
        vec value = vec_mul(vec_add(vec_load(x + k), offset), vec_load(w->keep + k));
        largest = vec_max(largest, vec_abs(value));
        not_finite = vec_fma(value, vec_set(0.0f), not_finite);
    }
    const float levels = w->is_unsigned ? 255.0f : 127.0f, amax = vec_largest(largest);
    const float inverse = amax > 0.0f ? levels / amax : 0.0f;
    vec factor = vec_set(inverse);
    const vec low = vec_set(w->is_unsigned ? 0.0f : -127.0f), high = vec_set(levels);
    const int zero_point = w->is_unsigned ? 0 : ZERO_POINT;
    for (int k = 0; k < w->in; k += LANES) {
        vec value = vec_mul(vec_add(vec_load(x + k), offset), vec_mul(vec_load(w->keep + k), factor));
        store_codes(codes + k, vec_max(vec_min(vec_round(value), high), low), zero_point);
    }
    *scale = amax / levels + vec_sum(not_finite); /* NaN, for a row with NaN or infinity, reaches every result */
    for (int j = 0; j < w->num_outliers; j++) outliers[j] = x[w->outliers[j]];
}

/* Four bytes, or two 16-bit integers, of a row of codes. */
INLINE int32_t codes_at(const code *x) {
    int32_t codes;
    memcpy(&codes, x, sizeof codes);
    return codes;
}

/* The sums of one tile: `rows` rows, `groups` groups of 16 columns, which are constants of the calls. The sums are single
 * variables, because compilers keep an array of them in memory. */
#define EACH_ROW(f) f(0) f(1) f(2) f(3) f(4) f(5)
#define DECLARE(r) sum s##r##0 = start0, s##r##1 = start1, s##r##2 = start2, s##r##3 = start3;
#define ADD(r)                                                     \
    if (rows > r) {                                                \
        const int32_t codes = codes_at(x + (size_t)r * w->in + k); \
        s##r##0 = sum_product(s##r##0, codes, w0);                 \
        if (groups > 1) s##r##1 = sum_product(s##r##1, codes, w1); \
        if (groups > 2) s##r##2 = sum_product(s##r##2, codes, w2); \
        if (groups > 3) s##r##3 = sum_product(s##r##3, codes, w3); \
    }
#define STORE(r)                                                       \
    if (rows > r) {                                                    \
        sum_store(sums[r], s##r##0);                                   \
        if (groups > 1) sum_store(sums[r] + GROUP, s##r##1);           \
        if (groups > 2) sum_store(sums[r] + 2 * GROUP, s##r##2);       \
        if (groups > 3) sum_store(sums[r] + 3 * GROUP, s##r##3);       \
    }

INLINE void sum_tile(const int rows, const int groups, const Linear *w, int column, const code *x,
                     int32_t sums[ROWS][GROUPS * GROUP]) {
    const size_t group_bytes = (size_t)w->in / PER_STEP * 64;
    const char *weight = (const char *)w->weight + column / GROUP * group_bytes;
    const sum start0 = sum_load(w->start + column), start1 = groups > 1 ? sum_load(w->start + column + GROUP) : start0,
              start2 = groups > 2 ? sum_load(w->start + column + 2 * GROUP) : start0,
              start3 = groups > 3 ? sum_load(w->start + column + 3 * GROUP) : start0;
    EACH_ROW(DECLARE)
    for (int k = 0; k < w->in; k += PER_STEP, weight += 64) {
        const step w0 = step_load(weight), w1 = groups > 1 ? step_load(weight + group_bytes) : w0,
                   w2 = groups > 2 ? step_load(weight + 2 * group_bytes) : w0,
                   w3 = groups > 3 ? step_load(weight + 3 * group_bytes) : w0;
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}

/* y = act(s_row s_col q + x_outliers W_outliers + b) for the sums q of some columns of one row. */
INLINE void finish_row(const Linear *w, const int activation, const int32_t *sums, int column, int end, float row_scale,
                       const float *outliers, float *y) {
    const vec scale = vec_set(row_scale);
    for (int n = column; n < end; n += GROUP, sums += GROUP) {
        vec value = vec_fma(vec_from_int(sums), vec_mul(scale, vec_load(w->scale + n)), vec_load(w->bias + n));
        for (int j = 0; j < w->num_outliers; j++)
            value = vec_fma(vec_set(outliers[j]), vec_load(w->outlier_weight + (size_t)j * w->out + n), value);
        vec_store(y + n, activate(value, activation));
    }
}

INLINE void tile(const int rows, const int groups, const Linear *w, const int activation, int column, const code *x,
                 const float *scales, const float *outliers, float *y, int stride) {
    int32_t sums[ROWS][GROUPS * GROUP] __attribute__((aligned(64)));
    sum_tile(rows, groups, w, column, x, sums);
    for (int r = 0; r < rows; r++)
        finish_row(w, activation, sums[r], column, column + groups * GROUP, scales[r], outliers + r * MAX_OUTLIERS,
                   y + (size_t)r * stride);
}

INLINE void tile_rows(const int rows, const Linear *w, const int activation, int groups, int column, const code *x,
                      const float *scales, const float *outliers, float *y, int stride) {
#if GROUPS == 4
    switch (groups) {
    case 1: tile(rows, 1, w, activation, column, x, scales, outliers, y, stride); break;
    case 2: tile(rows, 2, w, activation, column, x, scales, outliers, y, stride); break;
    case 3: tile(rows, 3, w, activation, column, x, scales, outliers, y, stride); break;
    default: tile(rows, 4, w, activation, column, x, scales, outliers, y, stride);
    }
#else
    (void)groups;
    tile(rows, 1, w, activation, column, x, scales, outliers, y, stride);
#endif
}

/* Columns [first, last) of y for all rows of codes. The weights of a tile's columns stay in the first cache. */
INLINE void multiply_activated(const Linear *w, const int activation, int first, int last, const code *x,
                               const float *scales, const float *outliers, int rows, float *y, int stride) {
    for (int column = first; column < last; column += GROUPS * GROUP) {
        const int left = (last - column) / GROUP, groups = left < GROUPS ? left : GROUPS;
        int r = 0;
        for (; r + ROWS <= rows; r += ROWS)
            tile_rows(ROWS, w, activation, groups, column, x + (size_t)r * w->in, scales + r,
                      outliers + (size_t)r * MAX_OUTLIERS, y + (size_t)r * stride, stride);
        for (; r < rows; r++)
            tile_rows(1, w, activation, groups, column, x + (size_t)r * w->in, scales + r,
                      outliers + (size_t)r * MAX_OUTLIERS, y + (size_t)r * stride, stride);
    }
}

/* A column of W with all that belongs to it, side by side: codes, zeros up to a multiple of 64 bytes, then these. */
typedef struct {
    int32_t start;
    float scale, bias, outlier_weight[MAX_OUTLIERS];
} ColumnEnd;

/* The same value as `multiply` gives, for one row and one column. */
INLINE float dot(const Linear *w, const char *column, const code *x, float row_scale, const float *outliers) {
    sum total = sum_load((const int32_t[GROUP]){0});
    for (int k = 0; k < w->in; k += 64 / (int)sizeof(code), column += 64) total = sum_line(total, x + k, column);
    const ColumnEnd *end = (const ColumnEnd *)column;
    float value = __builtin_fmaf((float)(end->start + sum_total(total)), row_scale * end->scale, end->bias);
    for (int j = 0; j < w->num_outliers; j++) value = __builtin_fmaf(outliers[j], end->outlier_weight[j], value);
    return value;
}

static void multiply(const Linear *w, int activation, int first, int last, const code *x, const float *scales,
                     const float *outliers, int rows, float *y, int stride) {
    switch (activation) {
    case RELU: multiply_activated(w, RELU, first, last, x, scales, outliers, rows, y, stride); break;
    case GELU: multiply_activated(w, GELU, first, last, x, scales, outliers, rows, y, stride); break;
    case GELU_TANH: multiply_activated(w, GELU_TANH, first, last, x, scales, outliers, rows, y, stride); break;
    case SILU: multiply_activated(w, SILU, first, last, x, scales, outliers, rows, y, stride); break;
    default: multiply_activated(w, NO_ACTIVATION, first, last, x, scales, outliers, rows, y, stride);
    }
}

#endif
