/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits the JSON of a KServe request in two. The head is everything except the values of tensors;
 * it is small, and is parsed by jansson. There may be millions of values, so kserve_json_values
 * parses them. Any thread.
 *
 *     {"inputs":[{"name":"KEYS","shape":[3],"data":[7, 8, 9]}]}
 *
 *     head    {"inputs":[{"name":"KEYS","shape":[3],"data":null}]}
 *     data    inputs[0]: [7, 8, 9]
 *
 * The scan limits everything for which jansson would need memory or stack: the bytes of the head,
 * its number of values, its nesting, and the numbers of inputs and outputs. The scan does not check
 * that the text is JSON: invalid text outside the values stays in the head, and jansson rejects it.
 */
#ifndef HPS_SERVER_KSERVE_JSON_SCAN_H
#define HPS_SERVER_KSERVE_JSON_SCAN_H

#include "base/buf.h"
#include "server/kserve/infer.h"

enum {
    KSERVE_JSON_HEAD_BYTES_MAX = 1024 * 1024,
    KSERVE_JSON_DEPTH_MAX = 16 /* nested objects and arrays */
};

static inline bool kserve_json_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The array that is the member `data` of an input. */
struct kserve_json_data {
    uint64_t input;          /* index of the input */
    struct kserve_text text; /* the array, with its brackets */
};

struct kserve_json {
    struct hps_buf head; /* the JSON, with `null` in place of each array that is in `data` */
    struct hps_buf data; /* array of struct kserve_json_data, in the order of the text */
};

static inline const struct kserve_json_data *kserve_json_data(const struct kserve_json *json,
                                                              size_t *out_n)
{
    *out_n = json->data.size / sizeof(struct kserve_json_data);
    return (const struct kserve_json_data *)(const void *)json->data.data;
}

/* Scans `text`, which is borrowed while *out_json is used. The caller frees *out_json with
 * kserve_json_fini, also after an error.
 *
 * error   INVALID: a limit is exceeded, or a string, object or array is not closed; the error text
 *         has the cause and the path; NO_MEMORY */
hps_status kserve_json_scan(struct kserve_text text, const struct hps_decode_limits *limits,
                            struct kserve_json *out_json, struct hps_error *err) HPS_MUST_CHECK;
void kserve_json_fini(struct kserve_json *json);

enum { KSERVE_JSON_PATH_BYTES = 96 };
/* Writes the path of the JSON value at byte `position` of the head, such as "inputs[1].shape[0]".
 * The path of the top-level object is "". */
void kserve_json_path(const struct kserve_json *json, size_t position,
                      const struct hps_decode_limits *limits, char path[KSERVE_JSON_PATH_BYTES]);

/* Parses the text of a kserve_json_data. The array may be flat, or nested as the shape of the
 * tensor. The caller has set name, datatype and shape of `tensor`; this function sets data, in
 * `arena`, and size.
 *
 * INT64, INT32 and UINT8 values must be integers in the range of the type, without fraction or
 * exponent. FP32 values are rounded to the nearest float. FP16 and BF16 are rejected.
 *
 * error   INVALID: the error text names the tensor, and the wrong value or the numbers of values;
 *         EXHAUSTED: the arena is full */
hps_status kserve_json_values(struct kserve_text text, struct kserve_tensor *tensor,
                              struct hps_arena *arena, struct hps_error *err) HPS_MUST_CHECK;

#endif
