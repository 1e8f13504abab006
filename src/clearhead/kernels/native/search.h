/* Bounds of the dot products of a query with rows in 8 bits, for exact search.
 *
 * A row x is s c + r with codes c of [-127, 127] and the norm e of the remainder r; a query q is t k + f with codes k of 16
 * bits. The sums of codes are exact integers, so a bound does not depend on the processor:
 * |q x - t s (k c)| <= ||q|| e + slack, where the slack covers f and the rounding of this file. */
#ifndef CLEARHEAD_SEARCH_H
#define CLEARHEAD_SEARCH_H

#include "vectors.h"

#define SEARCH_ROWS 64 /* rows with one common lower bound */

/* The sum of the products of `width` codes of a row and of a query, both padded to a multiple of 32 in registers only. */
INLINE int32_t code_product(const int8_t *row, const int16_t *query, int width) {
    int k = 0;
    int32_t total = 0;
#ifdef __AVX512BW__
    __m512i sum = _mm512_setzero_si512(), other = sum;
    for (; k + 64 <= width; k += 64) {
        __m512i a = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(row + k)));
        __m512i b = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(row + k + 32)));
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(a, _mm512_loadu_si512(query + k)));
        other = _mm512_add_epi32(other, _mm512_madd_epi16(b, _mm512_loadu_si512(query + k + 32)));
    }
    total = _mm512_reduce_add_epi32(_mm512_add_epi32(sum, other));
#else
    __m256i sum = _mm256_setzero_si256(), other = sum;
    for (; k + 32 <= width; k += 32) {
        __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + k)));
        __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + k + 16)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, _mm256_loadu_si256((const __m256i *)(query + k))));
        other = _mm256_add_epi32(other, _mm256_madd_epi16(b, _mm256_loadu_si256((const __m256i *)(query + k + 16))));
    }
    int32_t parts[8];
    _mm256_storeu_si256((__m256i *)parts, _mm256_add_epi32(sum, other));
    for (int i = 0; i < 8; i++) total += parts[i];
#endif
    for (; k < width; k++) total += row[k] * query[k];
    return total;
}

/* Upper bounds of rows [first, last), and the largest of their lower bounds. `bounds` has s and e of each row. */
INLINE float search_block(const int8_t *codes, const float *bounds, int64_t first, int64_t last, int width,
                          const int16_t *query, float factor, float norm, float slack, float *upper) {
    float largest = -__builtin_inff();
    for (int64_t r = first; r < last; r++) {
        float score = (float)code_product(codes + r * width, query, width) * (factor * bounds[2 * r]);
        float error = norm * bounds[2 * r + 1] + slack;
        upper[r] = score + error;
        if (score - error > largest) largest = score - error;
    }
    return largest;
}

#endif
