/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON of a request of KServe, cut in two: the head, which is small and goes to jansson, and
 * the values of tensors, which may be millions and do not. Any thread.
 *
 *     {"inputs":[{"name":"KEYS","shape":[3],"data":[7, 8, 9]}]}
 *
 *     head    {"inputs":[{"name":"KEYS","shape":[3],"data":null}]}
 *     data    inputs[0]: [7, 8, 9]
 *
 * The scan is bounded in all that jansson would need memory or stack for: bytes of the head, values
 * in it, how deep they are nested, inputs and outputs. It finds out where the values of tensors are
 * and leaves it to jansson to say what is no JSON: what it makes of a text that is none is none.
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

/* An array that was the member `data` of inputs[input]; with its brackets. */
struct kserve_json_data {
    uint64_t input;
    struct kserve_text text;
};

struct kserve_json {
    struct hps_buf head; /* `null` in the place of each array */
    struct hps_buf data; /* struct kserve_json_data, in the order of the text */
};

static inline const struct kserve_json_data *kserve_json_data(const struct kserve_json *json,
                                                              size_t *out_n)
{
    *out_n = json->data.size / sizeof(struct kserve_json_data);
    return (const struct kserve_json_data *)(const void *)json->data.data;
}

/* `text` is borrowed as long as *out_json is used. The caller gives it back with kserve_json_fini,
 * whatever this returns.
 *
 * error   INVALID: names the limit, or what is not closed, and the member; NO_MEMORY
 */
hps_status kserve_json_scan(struct kserve_text text, const struct hps_decode_limits *limits,
                            struct kserve_json *out_json, struct hps_error *err) HPS_MUST_CHECK;
void kserve_json_fini(struct kserve_json *json);

enum { KSERVE_JSON_PATH_BYTES = 96 };
/* The member at byte `position` of the head, such as "inputs[1].shape[0]"; "": none. */
void kserve_json_path(const struct kserve_json *json, size_t position,
                      const struct hps_decode_limits *limits, char path[KSERVE_JSON_PATH_BYTES]);

/* The values of such an array, [..] or nested as the shape is: `tensor` has its name, datatype and
 * shape, and gets data and size, in `arena`.
 *
 * INT64, INT32, UINT8: integers in their range, without fraction or exponent. FP32: the nearest
 * one. Of FP16 and BF16 there are none in JSON.
 *
 * error   INVALID: names the tensor, and the value or both numbers of values; EXHAUSTED
 */
hps_status kserve_json_values(struct kserve_text text, struct kserve_tensor *tensor,
                              struct hps_arena *arena, struct hps_error *err) HPS_MUST_CHECK;

#endif
