/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the numbers of a JSON array, flat or nested, as the values of a tensor. See
 * server/kserve/json_scan.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "server/kserve/json_scan.h"

enum {
    SHOWN_CHARS_MAX = 40,
    NUMBER_BYTES_MAX = 512 /* of a number in JSON, with a NUL */
};

struct reader {
    const char *at;
    const char *end;
    const struct kserve_tensor *tensor;
    struct hps_error *err;
    bool nested;                      /* the first element of the array is an array */
    unsigned depth;                   /* open arrays */
    int64_t lengths[KSERVE_DIMS_MAX]; /* elements of each open array so far */
    uint8_t *to;                      /* NULL: values are only counted */
    uint64_t n_max;                   /* values of the shape */
    uint64_t n;                       /* values read so far */
};

static void skip_space(struct reader *in)
{
    while (in->at < in->end && kserve_json_is_space(*in->at)) {
        in->at++;
    }
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* The text at the position of a value, up to a separator. */
static struct kserve_text shown(const struct reader *in)
{
    size_t size = 0;

    while (size < (size_t)(in->end - in->at) && size < SHOWN_CHARS_MAX &&
           (size == 0 || strchr(",]} \t\r\n", in->at[size]) == NULL)) {
        size++;
    }
    return (struct kserve_text){in->at, size};
}

static hps_status wrong_value(const struct reader *in, const char *expected)
{
    struct kserve_text value = shown(in);

    return hps_error_set(
        in->err, HPS_INVALID, "input '%.*s': data[%" PRIu64 "]: '%.*s', expected %s",
        KSERVE_TEXT_ARGS(in->tensor->name), in->n, KSERVE_TEXT_ARGS(value), expected);
}

static hps_status wrong_nesting(const struct reader *in)
{
    return hps_error_set(in->err, HPS_INVALID,
                         "input '%.*s': data[%" PRIu64
                         "]: expected arrays nested like the shape, or one flat array",
                         KSERVE_TEXT_ARGS(in->tensor->name), in->n);
}

/* ---- one value ------------------------------------------------------------------------------- */

/* Whether a number can end here. */
static bool ends_number(const struct reader *in, const char *at)
{
    return at < in->end && (*at == ',' || *at == ']' || kserve_json_is_space(*at));
}

static const struct {
    int64_t min, max;
    const char *expected;
} INTEGERS[KSERVE_DATATYPES] = {
    [KSERVE_UINT8] = {0, UINT8_MAX, "an integer of 0 to 255"},
    [KSERVE_INT32] = {INT32_MIN, INT32_MAX, "an integer of -2147483648 to 2147483647"},
    [KSERVE_INT64] = {INT64_MIN, INT64_MAX,
                      "an integer of -9223372036854775808 to 9223372036854775807"},
};

/* Copies the characters of a number, because the text has no NUL. A longer number is cut, so that
 * it is rejected. False: JSON has no such number, but strtoll or strtof would read it: 01, +1, .5.
 */
static bool copy_number(const struct reader *in, char out[static NUMBER_BYTES_MAX])
{
    size_t n = 0;
    while (n < NUMBER_BYTES_MAX - 1 && in->at + n < in->end &&
           (is_digit(in->at[n]) || (in->at[n] != '\0' && strchr("+-.eE", in->at[n]) != NULL))) {
        out[n] = in->at[n];
        n++;
    }
    out[n] = '\0';
    out += out[0] == '-' ? 1 : 0;
    return is_digit(out[0]) && !(out[0] == '0' && is_digit(out[1]));
}

static hps_status read_integer(struct reader *in, int64_t *out_value)
{
    enum kserve_datatype datatype = in->tensor->datatype;
    char text[NUMBER_BYTES_MAX], *end;

    bool number = copy_number(in, text);
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!number || !ends_number(in, in->at + (end - text)) || errno == ERANGE ||
        value < INTEGERS[datatype].min || value > INTEGERS[datatype].max) {
        return wrong_value(in, INTEGERS[datatype].expected);
    }
    in->at += end - text;
    *out_value = value;
    return HPS_OK;
}

static hps_status read_float(struct reader *in, float *out_value)
{
    char text[NUMBER_BYTES_MAX], *end;
    bool number = copy_number(in, text);
    float value = strtof(text, &end);
    const char *point = strchr(text, '.');

    if (!number || !ends_number(in, in->at + (end - text)) ||
        (point != NULL && !is_digit(point[1]))) {
        return wrong_value(in, "a number");
    }
    if (isinf(value)) {
        return wrong_value(in, "a number that FP32 holds");
    }
    in->at += end - text;
    *out_value = value;
    return HPS_OK;
}

/* Writes a value to its place, if there is memory for it. */
static void put(struct reader *in, const void *value)
{
    size_t bytes = kserve_datatype_bytes(in->tensor->datatype);

    if (in->to != NULL && in->n < in->n_max) {
        memcpy(in->to + in->n * bytes, value, bytes); /* little-endian: the low bytes */
    }
    in->n++;
}

static hps_status read_value(struct reader *in)
{
    int64_t integer;
    float number;
    hps_status status;

    if (in->tensor->datatype == KSERVE_FP32) {
        status = read_float(in, &number);
        if (status == HPS_OK) {
            put(in, &number);
        }
        return status;
    }
    status = read_integer(in, &integer);
    if (status == HPS_OK) {
        put(in, &integer);
    }
    return status;
}

/* ---- the array ------------------------------------------------------------------------------- */

static hps_status open_array(struct reader *in)
{
    unsigned depth_max = in->nested ? in->tensor->n_dims : 1;

    if (in->depth >= depth_max) {
        return wrong_nesting(in);
    }
    in->lengths[in->depth++] = 0;
    in->at++;
    return HPS_OK;
}

/* A nested array must have the lengths of the shape. The length of a flat array is checked at its
 * end. */
static hps_status close_array(struct reader *in)
{
    in->depth--;
    in->at++;
    if (in->nested && in->lengths[in->depth] != in->tensor->shape[in->depth]) {
        return wrong_nesting(in);
    }
    return HPS_OK;
}

/* Reads a value, or the start of an array, at the cursor. */
static hps_status read_item(struct reader *in)
{
    HPS_ASSERT(in->at < in->end);
    if (*in->at == '[') {
        return open_array(in);
    }
    if (in->nested && in->depth != in->tensor->n_dims) {
        return *in->at == '-' || is_digit(*in->at) ? wrong_nesting(in)
                                                   : wrong_value(in, "an array");
    }
    return read_value(in);
}

/* Reads from the end of an item, or the start of an array, to the next item or the end of the outer
 * array. */
static hps_status read_between(struct reader *in, bool *in_out_begun)
{
    skip_space(in);
    while (in->depth > 0 && in->at < in->end && *in->at == ']') {
        hps_status status = close_array(in);
        if (status != HPS_OK) {
            return status;
        }
        *in_out_begun = false;
        skip_space(in);
    }
    if (in->depth == 0) {
        return HPS_OK;
    }
    if (!*in_out_begun) {
        if (in->at == in->end || *in->at != ',') {
            return wrong_value(in, "a comma or ']'");
        }
        in->at++;
        skip_space(in);
    }
    in->lengths[in->depth - 1]++;
    return in->at < in->end ? HPS_OK : wrong_value(in, "a value");
}

static hps_status read_array(struct reader *in)
{
    hps_status status = open_array(in);

    while (status == HPS_OK) {
        bool begun = in->at[-1] == '[';
        status = read_between(in, &begun);
        if (status != HPS_OK || in->depth == 0) {
            return status;
        }
        status = read_item(in);
    }
    return status;
}

static bool is_nested(struct kserve_text text)
{
    struct reader in = {.at = text.at + 1, .end = text.at + text.size};

    skip_space(&in);
    return in.at < in.end && *in.at == '[';
}

static hps_status check_datatype(const struct kserve_tensor *tensor, struct hps_error *err)
{
    if (tensor->datatype == KSERVE_FP32 || INTEGERS[tensor->datatype].expected != NULL) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_INVALID,
                         "input '%.*s': values of %s cannot be sent as JSON; send them after the "
                         "JSON, with binary_data_size",
                         KSERVE_TEXT_ARGS(tensor->name), kserve_datatype_name(tensor->datatype));
}

hps_status kserve_json_values(struct kserve_text text, struct kserve_tensor *tensor,
                              struct hps_arena *arena, struct hps_error *err)
{
    size_t size = 0;
    hps_status status = kserve_tensor_bytes(tensor, &size, err);

    HPS_ASSERT(text.size >= 2 && text.at[0] == '[' && text.at[text.size - 1] == ']');
    if (status == HPS_OK) {
        status = check_datatype(tensor, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct reader in = {.at = text.at,
                        .end = text.at + text.size,
                        .tensor = tensor,
                        .err = err,
                        .nested = is_nested(text),
                        .n_max = size / kserve_datatype_bytes(tensor->datatype)};
    /* A value and its separator have at least two characters. So memory is allocated only if the
     * text can hold the values of the shape. */
    if (size > 0 && in.n_max <= text.size / 2) {
        in.to = hps_arena_alloc(arena, size);
        if (in.to == NULL) {
            return hps_error_set(err, HPS_EXHAUSTED, "input '%.*s': no memory for %zu bytes",
                                 KSERVE_TEXT_ARGS(tensor->name), size);
        }
    }
    status = read_array(&in);
    if (status == HPS_OK && in.n != in.n_max) {
        status = hps_error_set(err, HPS_INVALID,
                               "input '%.*s': data has %" PRIu64 " values, its shape has %" PRIu64,
                               KSERVE_TEXT_ARGS(tensor->name), in.n, in.n_max);
    }
    if (status == HPS_OK) {
        HPS_ASSERT(in.at == in.end);
        tensor->data = in.to;
        tensor->size = size;
    }
    return status;
}
