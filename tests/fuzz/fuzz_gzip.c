/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as compressed message. The first byte selects the size limit. Or it selects a round
 * trip: the rest is compressed, and inflation must restore it. A failure must leave the buffer
 * unchanged.
 */
#include <zlib.h>

#include "base/assert.h"
#include "base/heap.h"
#include "net/gzip.h"
#include "tests/fuzz/script.h"

enum { GZIP_WINDOW_BITS = 15 + 16 };

static const char before[] = "what is there";

/* Inflates `data` behind the bytes of `before`, and returns the result. */
static hps_status inflate_all(const uint8_t *data, size_t size, size_t bytes_max,
                              struct hps_buf *out)
{
    struct hps_error err = {0};

    hps_buf_init(out, bytes_max);
    if (bytes_max < sizeof(before) || hps_buf_append(out, before, sizeof(before)) != HPS_OK) {
        return HPS_NO_MEMORY;
    }
    hps_status status = hps_gzip_inflate(data, size, out, &err);
    HPS_ASSERT(out->size <= bytes_max && memcmp(out->data, before, sizeof(before)) == 0);
    HPS_ASSERT(status == HPS_OK || (err.text[0] != '\0' && out->size == sizeof(before)));
    return status;
}

static void check_round(const uint8_t *data, size_t size)
{
    z_stream stream = {0};
    struct hps_buf out;

    if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, GZIP_WINDOW_BITS, 1, Z_FIXED) != Z_OK) {
        return;
    }
    size_t capacity = deflateBound(&stream, size);
    uint8_t *packed = hps_alloc(capacity);
    if (packed != NULL) {
        stream.next_in = (uint8_t *)(uintptr_t)data;
        stream.avail_in = (uInt)size;
        stream.next_out = packed;
        stream.avail_out = (uInt)capacity;
        HPS_ASSERT(deflate(&stream, Z_FINISH) == Z_STREAM_END);
        HPS_ASSERT(inflate_all(packed, capacity - stream.avail_out, sizeof(before) + size, &out) ==
                   HPS_OK);
        HPS_ASSERT(out.size == sizeof(before) + size);
        HPS_ASSERT(size == 0 || memcmp(out.data + sizeof(before), data, size) == 0);
        hps_buf_fini(&out);
    }
    hps_free(packed);
    (void)deflateEnd(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_buf out;
    uint8_t mode = script_u8(&script);

    if (mode >= 0xf0) {
        check_round(script.at, script.left);
    } else {
        size_t bytes_max = sizeof(before) + ((size_t)1 << (mode % 18));
        hps_ignore(inflate_all(script.at, script.left, bytes_max, &out));
        hps_buf_fini(&out);
    }
    return 0;
}
