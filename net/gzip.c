/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded inflation with zlib. The output grows in steps, so a compression bomb costs no more than
 * the limit.
 */
#include "net/gzip.h"

#include <limits.h>
#include <stdint.h>
#include <zlib.h>

#include "base/assert.h"
#include "base/heap.h"

#define WINDOW_GZIP_ONLY (15 + 16) /* 32 KB window, gzip header required */
#define WINDOW_ZLIB_ONLY 15
#define STEP_BYTES_MIN   4096u
#define STEP_BYTES_MAX   (1u << 20)

enum { GZIP_TRAILER_BYTES = 8 }; /* CRC and inflated size: u32 LE each */

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

/* Makes space for the next piece, up to `end` bytes of `out`. When `end` is reached, one spare byte
 * shows whether there is more output. */
static hps_status ensure_output(z_stream *zs, struct hps_buf *out, size_t end, uint8_t *spare)
{
    size_t left = end - out->size;
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

/* The size up to which `out` may grow for `size` compressed bytes. */
static size_t end_of(const struct hps_buf *out, size_t size)
{
    size_t grown =
        size < SIZE_MAX / HPS_GZIP_RATIO_MAX ? size * HPS_GZIP_RATIO_MAX : (size_t)SIZE_MAX;
    size_t left = out->size_max - out->size;

    grown = grown > HPS_GZIP_FREE_BYTES ? grown : HPS_GZIP_FREE_BYTES;
    return out->size + (grown < left ? grown : left);
}

static hps_status too_large(const struct hps_buf *out, size_t size, size_t end,
                            struct hps_error *err)
{
    if (end == out->size_max) {
        return hps_error_set(err, HPS_EXHAUSTED,
                             "compressed message inflates to more than %zu bytes", end);
    }
    return hps_error_set(err, HPS_EXHAUSTED,
                         "compressed message of %zu bytes inflates to more than %d times its size, "
                         "the limit for more than 1 MiB; send it uncompressed",
                         size, HPS_GZIP_RATIO_MAX);
}

static hps_status inflate_all(z_stream *zs, const uint8_t *data, size_t size, struct hps_buf *out,
                              struct hps_error *err)
{
    size_t out_end = end_of(out, size);
    uint8_t spare;
    const uint8_t *end = data + size;
    zs->next_in = (Bytef *)(uintptr_t)data;
    for (;;) {
        hps_status status = ensure_output(zs, out, out_end, &spare);
        if (status != HPS_OK) {
            return hps_error_set(err, status, "compressed message: %s", hps_status_text(status));
        }
        size_t in = (size_t)(end - zs->next_in);
        zs->avail_in = in < UINT_MAX ? (uInt)in : UINT_MAX;
        uInt space = zs->avail_out;
        int rc = inflate(zs, Z_NO_FLUSH);
        size_t written = space - zs->avail_out;
        if (zs->next_out == &spare + 1) {
            return too_large(out, size, out_end, err);
        }
        HPS_ASSERT(written <= out_end - out->size);
        out->size += written;
        if (rc == Z_STREAM_END && zs->next_in == end) {
            return HPS_OK;
        }
        if (rc == Z_STREAM_END) {
            rc = inflateReset(zs); /* the next member */
        }
        if (rc == Z_MEM_ERROR) {
            return hps_error_set(err, HPS_NO_MEMORY, "compressed message: out of memory");
        }
        if (rc == Z_BUF_ERROR || (rc == Z_OK && zs->next_in == end && zs->avail_out > 0)) {
            return hps_error_set(err, HPS_INVALID, "compressed message is cut short");
        }
        if (rc != Z_OK) {
            return hps_error_set(err, HPS_INVALID, "compressed message is damaged: %s",
                                 zs->msg ? zs->msg : "its data do not match its encoding");
        }
    }
}

static hps_status inflate_as(int window, const void *data, size_t size, struct hps_buf *out,
                             struct hps_error *err)
{
    z_stream zs = {.zalloc = zlib_alloc, .zfree = zlib_free};
    if (size == 0) {
        return hps_error_set(err, HPS_INVALID, "compressed message is empty");
    }
    if (inflateInit2(&zs, window) != Z_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "compressed message: out of memory");
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

hps_status hps_gzip_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err)
{
    return inflate_as(WINDOW_GZIP_ONLY, data, size, out, err);
}

hps_status hps_zlib_inflate(const void *data, size_t size, struct hps_buf *out,
                            struct hps_error *err)
{
    return inflate_as(WINDOW_ZLIB_ONLY, data, size, out, err);
}

size_t hps_gzip_size(const void *data, size_t size)
{
    if (size < GZIP_TRAILER_BYTES) {
        return 0;
    }
    const uint8_t *begin = data;
    const uint8_t *end = begin + size;
    if (begin[0] != 0x1f || begin[1] != 0x8b) {
        return 0;
    }
    return (size_t)end[-1] << 24 | (size_t)end[-2] << 16 | (size_t)end[-3] << 8 | end[-4];
}
