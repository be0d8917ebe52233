/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as input of an HTTP/2 server, in parts of a size that the first byte selects. The
 * filter must pass the same bytes for any size, and they must equal those of a simple parser of
 * frames.
 */
#include "base/assert.h"
#include "base/buf.h"
#include "net/http2_filter.h"
#include "tests/fuzz/script.h"

enum { PREFACE_BYTES = 24, TYPE_HEADERS = 1, TYPE_RESET = 3 };

static uint32_t id_of(const uint8_t *head)
{
    return ((uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]) &
           0x7fffffff;
}

/* Appends the bytes that must pass: all except complete resets of streams that were never opened.
 * Returns the number of these resets. An incomplete reset at the end is held back. */
static uint32_t expected(const uint8_t *data, size_t size, struct hps_buf *out)
{
    size_t at = size < PREFACE_BYTES ? size : PREFACE_BYTES;
    uint32_t last_id = 0;
    uint32_t n_dropped = 0;

    HPS_ASSERT(at == 0 || hps_buf_append(out, data, at) == HPS_OK);
    while (size - at >= HPS_HTTP2_HEAD_BYTES) {
        const uint8_t *head = data + at;
        size_t length = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        size_t left = size - at - HPS_HTTP2_HEAD_BYTES;
        uint32_t id = id_of(head);
        bool strange = id % 2 == 1 && head[3] == TYPE_RESET && length == 4 && id > last_id;
        if (strange && left < length) {
            break;
        }
        if (id % 2 == 1 && head[3] == TYPE_HEADERS && id > last_id) {
            last_id = id;
        }
        size_t whole = HPS_HTTP2_HEAD_BYTES + (length < left ? length : left);
        n_dropped += strange;
        HPS_ASSERT(strange || hps_buf_append(out, head, whole) == HPS_OK);
        at += whole;
    }
    return n_dropped;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_http2_filter filter;
    struct hps_buf ours;
    struct hps_buf theirs;
    size_t piece = script_u8(&script) + 1u;

    hps_http2_filter_init(&filter);
    hps_buf_init(&ours, size + 1);
    hps_buf_init(&theirs, size + 1);
    uint32_t n_dropped = expected(script.at, script.left, &theirs);
    while (script.left > 0) {
        size_t n;
        const uint8_t *at = script_take(&script, piece, &n);
        const uint8_t *run;
        size_t run_size;
        while (hps_http2_filter_next(&filter, &at, &n, &run, &run_size)) {
            HPS_ASSERT(run_size == 0 || hps_buf_append(&ours, run, run_size) == HPS_OK);
        }
        HPS_ASSERT(n == 0 && filter.n_held <= HPS_HTTP2_RESET_BYTES);
    }
    HPS_ASSERT(filter.n_dropped == n_dropped && ours.size == theirs.size);
    HPS_ASSERT(ours.size == 0 || memcmp(ours.data, theirs.data, ours.size) == 0);
    hps_buf_fini(&ours);
    hps_buf_fini(&theirs);
    return 0;
}
