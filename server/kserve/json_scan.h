/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits the JSON of a KServe request in two. The head is small and is parsed by jansson. The
 * values of tensors may be millions, and are parsed by kserve_json_values. Any thread.
 *
 *     {"inputs":[{"name":"KEYS","shape":[3],"data":[7, 8, 9]}]}
 *
 *     head    {"inputs":[{"name":"KEYS","shape":[3],"data":null}]}
 *     data    inputs[0]: [7, 8, 9]
 *
 * The scan limits everything for which jansson would need memory or stack: bytes and values of the
 * head, nesting, inputs and outputs. It only locates the values of tensors. Text that is not JSON
 * stays invalid in the head, so jansson rejects it.
 */
#ifndef HPS_SERVER_KSERVE_JSON_SCAN_H
#define HPS_SERVER_KSERVE_JSON_SCAN_H

#include "base/buf.h"
#include "server/kserve/infer.h"

enum {
    KSERVE_JSON_HEAD_BYTES_MAX = 1024 * 1024, /* without the values of tensors */
    KSERVE_JSON_DEPTH_MAX = 16
};

static inline bool kserve_json_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* An array, with its brackets, that is the member `data` of inputs[input]. */
struct kserve_json_data {
    uint64_t input;
    struct kserve_text text;
};

struct kserve_json {
    struct hps_buf head; /* with `null` in place of each array */
    struct hps_buf data; /* struct kserve_json_data, in the order of the text */
};

static inline const struct kserve_json_data *kserve_json_data(const struct kserve_json *json,
                                                              size_t *out_n)
{
    *out_n = json->data.size / sizeof(struct kserve_json_data);
    return (const struct kserve_json_data *)(const void *)json->data.data;
}

/* Scans `text`, which is borrowed while *out_json is used. The caller frees *out_json with
 * kserve_json_fini, also on failure.
 *
 * error   INVALID: the text names the limit or the unclosed part, and the member; NO_MEMORY */
hps_status kserve_json_scan(struct kserve_text text, const struct hps_decode_limits *limits,
                            struct kserve_json *out_json, struct hps_error *err) HPS_MUST_CHECK;
void kserve_json_fini(struct kserve_json *json);

enum { KSERVE_JSON_PATH_BYTES = 96 };
/* Writes the path of the member at byte `position` of the head, such as "inputs[1].shape[0]". At
 * the top level it is "". */
void kserve_json_path(const struct kserve_json *json, size_t position,
                      const struct hps_decode_limits *limits, char path[KSERVE_JSON_PATH_BYTES]);

/* Parses the values of such an array, flat or nested as the shape. `tensor` has name, datatype and
 * shape; this sets its data and size, in `arena`.
 *
 * INT64, INT32, UINT8: integers in their range, without fraction or exponent. FP32: rounded to the
 * nearest. FP16 and BF16 are not possible in JSON.
 *
 * error   INVALID: the text names the tensor, and the value or both numbers of values; EXHAUSTED */
hps_status kserve_json_values(struct kserve_text text, struct kserve_tensor *tensor,
                              struct hps_arena *arena, struct hps_error *err) HPS_MUST_CHECK;

#endif
