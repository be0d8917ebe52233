/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-bench: checks that returned rows are as hps-gen writes them, or are pooled from such rows.
 * The expected values are computed here from base/rows/rowgen.h, in the order and with the
 * roundings that proto/hps/v1/lookup.proto promises. For FP32 and FP16 tables every bit is known.
 * For other types the rule that converted the rows is not known: a value may differ by one step of
 * the type. Worker threads.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/rows/rowgen.h"
#include "tools/hps-bench.h"
#include "tools/rows.h"

/* Largest error of a value that was rounded to nearest, relative to the value. */
#define FP16_ERROR  0x1p-11F
#define BF16_ERROR  0x1p-8F
#define FLOAT_ERROR 0x1p-23F

void bench_check_free(struct bench_check *check)
{
    hps_free(check->row);
    hps_free(check->bytes);
    *check = (struct bench_check){0};
}

/* Makes the buffers large enough for rows of `dim`. */
static bool make_room(struct bench_check *check, uint32_t dim)
{
    if (check->dim >= dim && check->row != NULL) {
        return true;
    }
    bench_check_free(check);
    check->row = hps_calloc((size_t)dim + 1, 4 * sizeof(float));
    check->bytes = hps_calloc((size_t)dim + 8, sizeof(float));
    if (check->row == NULL || check->bytes == NULL) {
        bench_check_free(check);
        return false;
    }
    check->dim = dim;
    check->expected = check->row + dim;
    check->tolerance = check->expected + dim;
    check->got = check->tolerance + dim;
    return true;
}

/* Sets check->row to the row of hps-gen as a table of this type stores it. Returns the absolute
 * error that a value may have, in addition to the relative one. */
static float stored_row(struct bench_check *check, const struct bench_plan *plan,
                        const struct bench_table *table, enum hps_dtype stored, uint32_t dim,
                        hps_key key)
{
    float lowest = INFINITY;
    float highest = -INFINITY;

    hps_rowgen_row(plan->data_seed, table->number, key, dim, check->row);
    if (!hps_dtype_is_int8(stored)) {
        hps_row_convert(check->bytes, stored, check->row, HPS_DTYPE_FP32, dim);
        hps_row_convert(check->row, HPS_DTYPE_FP32, check->bytes, stored, dim);
        return 0;
    }
    for (uint32_t i = 0; i < dim; i++) {
        lowest = fminf(lowest, check->row[i]);
        highest = fmaxf(highest, check->row[i]);
    }
    return (highest - lowest) / 255 + 2 * FP16_ERROR * fmaxf(-lowest, highest);
}

/* Relative error of rounding to this type. */
static float share_of_error(enum hps_dtype dtype)
{
    return dtype == HPS_DTYPE_BF16 ? BF16_ERROR : dtype == HPS_DTYPE_FP16 ? FP16_ERROR : 0;
}

/* Divisor of the sum of a bag. */
static float divisor(enum hpsd_pooling pooling, const float *weights, size_t n)
{
    float sum = 0;
    float squares = 0;

    for (size_t i = 0; i < n; i++) {
        float weight = weights == NULL ? 1 : weights[i];
        float square = weight * weight;
        sum += weight;
        squares += square;
    }
    switch (pooling) {
    case HPSD_POOLING_MEAN:
        return sum;
    case HPSD_POOLING_SQRTN:
        return sqrtf(squares);
    case HPSD_POOLING_MEAN_BY_COUNT:
        return (float)n;
    case HPSD_POOLING_NONE:
    case HPSD_POOLING_SUM:
        break;
    }
    return 1;
}

/* Sets check->expected for row `row` of a query, and check->tolerance. A single key is a bag of
 * one. */
static void expect(struct bench_check *check, const struct bench_plan *plan,
                   const struct bench_table *table, enum hps_dtype stored, uint32_t dim,
                   const struct hpsd_query *query, size_t row)
{
    size_t begin = rows_first_key(query, row);
    size_t n = rows_first_key(query, row + 1) - begin;
    const float *weights = query->weights == NULL ? NULL : query->weights + begin;
    bool exact = stored == HPS_DTYPE_FP32 || stored == HPS_DTYPE_FP16;

    for (uint32_t i = 0; i < dim; i++) {
        check->expected[i] = 0;
        check->tolerance[i] = 0;
    }
    for (size_t k = 0; k < n; k++) {
        float weight = weights == NULL ? 1 : weights[k];
        float step = stored_row(check, plan, table, stored, dim, rows_key(query, begin + k));
        for (uint32_t i = 0; i < dim; i++) {
            float product = weight * check->row[i];
            float size = fabsf(product);
            check->expected[i] += product;
            if (!exact) { /* and the rounding errors of the sum */
                check->tolerance[i] +=
                    fabsf(weight) * step + size * (share_of_error(stored) + (float)n * FLOAT_ERROR);
            }
        }
    }
    float by = divisor(query->pooling, weights, n);
    for (uint32_t i = 0; i < dim; i++) {
        check->expected[i] = n == 0 || by == 0 ? 0 : check->expected[i] / by;
        check->tolerance[i] = n == 0 || by == 0 ? 0 : check->tolerance[i] / fabsf(by);
    }
}

/* Whether the values are the expected ones, converted to their type. */
static bool is_expected(struct bench_check *check, enum hps_dtype answered, uint32_t dim)
{
    float share = share_of_error(answered);

    if (!hps_dtype_is_int8(answered)) { /* INT8: the tolerance includes the step */
        hps_row_convert(check->bytes, answered, check->expected, HPS_DTYPE_FP32, dim);
        hps_row_convert(check->expected, HPS_DTYPE_FP32, check->bytes, answered, dim);
    }
    for (uint32_t i = 0; i < dim; i++) {
        float off = fabsf(check->got[i] - check->expected[i]);
        float tolerance = check->tolerance[i];
        tolerance += tolerance > 0 ? 2 * share * (fabsf(check->expected[i]) + tolerance) : 0;
        if (!(off <= tolerance)) {
            return false;
        }
    }
    return true;
}

/* The worst status of the keys of a row. If the server did not wait for a key, the row contains its
 * default row, which is not known here. */
static enum hps_key_status row_status(const struct hpsd_query *query, size_t row, size_t *out_key)
{
    size_t begin = rows_first_key(query, row);
    size_t end = rows_first_key(query, row + 1);
    enum hps_key_status status = HPS_KEY_FOUND;

    *out_key = begin;
    for (size_t k = begin; k < end; k++) {
        enum hps_key_status state = rows_key_status(query, k);
        if (state == HPS_KEY_DEFAULTED) {
            return state;
        }
        if (state != HPS_KEY_FOUND && status == HPS_KEY_FOUND) {
            status = state;
            *out_key = k;
        }
    }
    return status;
}

static bool row_is_right(struct bench_worker *worker, const struct bench_table *table,
                         const struct hpsd_query *query, size_t row,
                         const struct hpsd_result *result)
{
    const struct bench_plan *plan = worker->plan;
    enum hps_dtype dtype = (enum hps_dtype)result->dtype;
    enum hps_dtype stored = plan->output_type == HPSD_RAW ? dtype : table->dtype;

    expect(&worker->check, plan, table, stored, result->dim, query, row);
    rows_values(result, row, worker->check.got);
    return is_expected(&worker->check, dtype, result->dim);
}

/* key: the unknown one, or the one with the wrong row; ignored for a wrong bag. */
static void note_wrong(struct bench_counts *counts, const struct bench_table *table,
                       const struct hpsd_query *query, size_t row, size_t key, bool unknown)
{
    size_t n = rows_first_key(query, row + 1) - rows_first_key(query, row);

    if (counts->n_rows_wrong++ > 0) {
        return;
    }
    if (unknown || query->offsets == NULL) {
        (void)snprintf(counts->wrong_text, sizeof(counts->wrong_text),
                       "table %s, key %" PRId64 ": %s", table->name, (int64_t)rows_key(query, key),
                       unknown ? "the key is unknown to the server"
                               : "the row does not match that of hps-gen (other --data-seed?)");
    } else {
        (void)snprintf(counts->wrong_text, sizeof(counts->wrong_text),
                       "table %s, bag %zu, of %zu keys: does not match the rows of hps-gen (other "
                       "--data-seed?)",
                       table->name, row, n);
    }
}

void bench_verify(struct bench_worker *worker, const struct bench_table *table,
                  const struct hpsd_query *query, const struct hpsd_result *result)
{
    struct bench_counts *counts = &worker->counts;

    if (!make_room(&worker->check, result->dim)) {
        counts->n_rows_wrong += result->n_rows;
        (void)snprintf(counts->wrong_text, sizeof(counts->wrong_text),
                       "table %s: no memory to check rows of %" PRIu32 " values", table->name,
                       result->dim);
        return;
    }
    for (size_t row = 0; row < result->n_rows; row++) {
        size_t key;
        enum hps_key_status status = row_status(query, row, &key);
        if (status == HPS_KEY_DEFAULTED) {
            continue;
        }
        counts->n_rows_checked++;
        if (status != HPS_KEY_FOUND || !row_is_right(worker, table, query, row, result)) {
            note_wrong(counts, table, query, row, key, status != HPS_KEY_FOUND);
        }
    }
}
