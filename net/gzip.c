/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded inflation with zlib: output grows in steps, so that a bomb costs no more than the cap.
 */
#include "net/gzip.h"

#include <limits.h>
#include <stdint.h>
#include <zlib.h>

#include "base/assert.h"
#include "base/heap.h"

#define WINDOW_GZIP_ONLY (15 + 16) /* 32 KB window, gzip header required */
#define STEP_BYTES_MIN   4096u
#define STEP_BYTES_MAX   (1u << 20)

static voidpf zlib_alloc(voidpf ctx, uInt count, uInt size)
{
    (void)ctx;
    return hps_calloc(count, size);
}

static void zlib_free(voidpf ctx, voidpf ptr)
{
    (void)ctx;
    hps_free(ptr);
}

/* Room for the next piece. With the cap reached, one spare byte tells "just fits" from "more to
 * come". */
static hps_status make_room(z_stream *zs, struct hps_buf *out, uint8_t *spare)
{
    size_t left = out->size_max - out->size;
    size_t step = out->size < STEP_BYTES_MIN ? STEP_BYTES_MIN : out->size;
    step = step < STEP_BYTES_MAX ? step : STEP_BYTES_MAX;
    step = step < left ? step : left;
    if (step == 0) {
        zs->next_out = spare;
        zs->avail_out = 1;
        return HPS_OK;
    }
    hps_status status = hps_buf_reserve(out, step);
    if (status == HPS_OK) {
        zs->next_out = out->data + out->size;
        zs->avail_out = (uInt)step;
    }
    return status;
}

static hps_status inflate_all(z_stream *zs, const uint8_t *data, size_t size, struct hps_buf *out,
                              struct hps_error *err)
{
    uint8_t spare;
    const uint8_t *end = data + size;
    zs->next_in = (Bytef *)(uintptr_t)data;
    for (;;) {
        hps_status status = make_room(zs, out, &spare);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "gzip message: %s", hps_status_text(status));
        }
        size_t in = (size_t)(end - zs->next_in);
        zs->avail_in = in < UINT_MAX ? (uInt)in : UINT_MAX;
        uInt room = zs->avail_out;
        int rc = inflate(zs, Z_NO_FLUSH);
        size_t written = room - zs->avail_out;
        if (zs->next_out == &spare + 1) {
            return hps_error_set(err, HPS_EXHAUSTED, "gzip message inflates to more than %zu bytes",
                                 out->size_max);
        }
        HPS_ASSERT(written <= out->size_max - out->size);
        out->size += written;
        if (rc == Z_STREAM_END && zs->next_in == end) {
            return HPS_OK;
        }
        if (rc == Z_STREAM_END) {
            rc = inflateReset(zs); /* the next member */
        }
        if (rc == Z_MEM_ERROR) {
            return hps_error_set(err, HPS_NO_MEMORY, "gzip message: out of memory");
        }
        if (rc == Z_BUF_ERROR || (rc == Z_OK && zs->next_in == end && zs->avail_out > 0)) {
            return hps_error_set(err, HPS_INVALID, "gzip message is cut short");
        }
        if (rc != Z_OK) {
            return hps_error_set(err, HPS_INVALID, "gzip message is damaged: %s",
                                 zs->msg ? zs->msg : "no gzip data");
        }
    }
}

hps_status hps_gzip_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err)
{
    z_stream zs = {.zalloc = zlib_alloc, .zfree = zlib_free};
    if (size == 0) {
        return hps_error_set(err, HPS_INVALID, "gzip message is empty");
    }
    if (inflateInit2(&zs, WINDOW_GZIP_ONLY) != Z_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "gzip message: out of memory");
    }
    size_t before = out->size;
    HPS_ASSERT(before <= out->size_max);
    hps_status status = inflate_all(&zs, data, size, out, err);
    inflateEnd(&zs);
    if (status != HPS_OK) {
        out->size = before;
    }
    return status;
}
