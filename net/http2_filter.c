/* SPDX-License-Identifier: Apache-2.0
 *
 * See http2_filter.h.
 */
#include "net/http2_filter.h"

#include <string.h>

#include "base/assert.h"

enum { PREFACE_BYTES = 24, TYPE_HEADERS = 1, TYPE_RESET = 3 };

enum verdict { PASS, DROP, UNKNOWN };

void hps_http2_filter_init(struct hps_http2_filter *filter)
{
    *filter = (struct hps_http2_filter){.left = PREFACE_BYTES};
}

/* Judges the frame at `head`, which has `size` bytes so far. PASS sets `left` to its payload. */
static enum verdict judge(struct hps_http2_filter *filter, const uint8_t *head, size_t size)
{
    if (size < HPS_HTTP2_HEAD_BYTES) {
        return UNKNOWN;
    }
    size_t length = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    uint32_t id = (uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 |
                  (uint32_t)head[7] << 8 | head[8];
    bool clients = id % 2 == 1;
    if (clients && head[3] == TYPE_RESET && id > filter->last_id &&
        length == HPS_HTTP2_RESET_BYTES - HPS_HTTP2_HEAD_BYTES) {
        return size < HPS_HTTP2_RESET_BYTES ? UNKNOWN : DROP;
    }
    if (clients && head[3] == TYPE_HEADERS && id > filter->last_id) {
        filter->last_id = id;
    }
    filter->left = length;
    return PASS;
}

/* Completes the held bytes from *data, until they can be judged or *data ends. */
static enum verdict complete_held(struct hps_http2_filter *filter, const uint8_t **data,
                                  size_t *size)
{
    enum verdict verdict = UNKNOWN;
    while (*size > 0 && verdict == UNKNOWN) {
        HPS_ASSERT(filter->n_held < HPS_HTTP2_RESET_BYTES);
        filter->held[filter->n_held++] = *(*data)++;
        (*size)--;
        verdict = judge(filter, filter->held, filter->n_held);
    }
    filter->n_dropped += verdict == DROP;
    return verdict;
}

bool hps_http2_filter_next(struct hps_http2_filter *filter, const uint8_t **data, size_t *size,
                           const uint8_t **out_run, size_t *out_size)
{
    if (filter->n_held > 0) {
        enum verdict verdict = complete_held(filter, data, size);
        if (verdict == UNKNOWN) {
            return false;
        }
        *out_run = filter->held;
        *out_size = verdict == PASS ? filter->n_held : 0;
        filter->n_held = 0;
        return true;
    }
    if (*size == 0) {
        return false;
    }
    size_t at = 0;
    enum verdict verdict = PASS;
    while (at < *size && verdict == PASS) {
        size_t payload = filter->left < *size - at ? filter->left : *size - at;
        filter->left -= payload;
        at += payload;
        if (at < *size) {
            verdict = judge(filter, *data + at, *size - at);
            at += verdict == PASS ? HPS_HTTP2_HEAD_BYTES : 0;
        }
    }
    *out_run = *data;
    *out_size = at;
    if (verdict == DROP) {
        filter->n_dropped++;
        at += HPS_HTTP2_RESET_BYTES;
    } else if (verdict == UNKNOWN) {
        filter->n_held = (uint8_t)(*size - at);
        memcpy(filter->held, *data + at, filter->n_held);
        at = *size;
    }
    *data += at;
    *size -= at;
    return true;
}
