/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis's protocol (RESP2). Commands are encoded as bytes. Replies are decoded into their
 * destination; rows go straight to the caller's memory. No allocation per value. Not thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CODEC_H
#define HPS_BACKENDS_REDIS_CLIENT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* ---- commands -------------------------------------------------------------------------------- */

/* A command is its number of arguments, including its name, followed by that many arguments. Each
 * call appends to `buf`.
 * error   EXHAUSTED: past the buffer's size_max; NO_MEMORY; `buf` then has an incomplete command */
hps_status hps_redis_put_begin(struct hps_buf *buf, uint32_t n_args) HPS_MUST_CHECK;
hps_status hps_redis_put_arg(struct hps_buf *buf, const void *data, size_t size) HPS_MUST_CHECK;
hps_status hps_redis_put_text(struct hps_buf *buf, const char *text) HPS_MUST_CHECK;
hps_status hps_redis_put_u64(struct hps_buf *buf, uint64_t value) HPS_MUST_CHECK; /* decimal */
/* `n` arguments of `size` bytes each, contiguous in memory: keys as fields. */
hps_status hps_redis_put_args(struct hps_buf *buf, const void *data, size_t size, uint32_t n)
    HPS_MUST_CHECK;
/* A complete command from strings. */
hps_status hps_redis_put_command(struct hps_buf *buf, uint32_t n_args, const char *const *args)
    HPS_MUST_CHECK;

/* ---- replies --------------------------------------------------------------------------------- */

enum hps_redis_type {
    HPS_REDIS_NIL,
    HPS_REDIS_INT,
    HPS_REDIS_TEXT,  /* a string, or a status like "OK" */
    HPS_REDIS_ERROR, /* inside an array; an error that is the whole reply sets the reply's status */
    HPS_REDIS_ARRAY  /* its elements follow it, each with its own elements */
};

struct hps_redis_value {
    enum hps_redis_type type;
    uint32_t at;    /* TEXT, ERROR: begins at text.data + at, ends with a NUL */
    uint32_t size;  /* TEXT, ERROR: bytes; ARRAY: elements */
    int64_t number; /* INT */
};

/* A reply of any form, flattened in order of arrival. Reusable: memory is kept. */
struct hps_redis_values {
    struct hps_redis_value *items; /* [n] */
    uint32_t n;
    uint32_t capacity;
    uint32_t n_max;
    struct hps_buf text;
};

/* At most n_max values and text_max bytes of text. A larger reply is an error (EXHAUSTED) that ends
 * its connection. Allocates nothing. */
void hps_redis_values_init(struct hps_redis_values *values, uint32_t n_max, size_t text_max);
void hps_redis_values_fini(struct hps_redis_values *values);
/* Text of a TEXT or ERROR value with a NUL at its end; "" for other types. */
const char *hps_redis_values_text(const struct hps_redis_values *values, uint32_t i);
/* The value of an INT, or of a TEXT that is a decimal number. False: neither. */
bool hps_redis_values_i64(const struct hps_redis_values *values, uint32_t i, int64_t *out_number);
/* Same for unsigned numbers. */
bool hps_redis_values_u64(const struct hps_redis_values *values, uint32_t i, uint64_t *out_number);
/* Index of the value after value i and all its elements. */
uint32_t hps_redis_values_next(const struct hps_redis_values *values, uint32_t i);

/* Result for one key of a command that requests rows. */
enum hps_redis_found {
    HPS_REDIS_ROW_ABSENT, /* nil */
    HPS_REDIS_ROW_FOUND,  /* and copied */
    HPS_REDIS_ROW_MISFIT, /* a value of another size; nothing was copied */
};

/* A reply that is an array of `n_lead` values of any form, followed by one row or nil per key.
 * Anything else but a server error is a protocol error. */
struct hps_redis_rows {
    uint32_t n_lead; /* values that go to the reply's `values` */
    uint32_t n;      /* keys */
    uint32_t row_bytes;
    const uint32_t *slots; /* [n] row number in `rows` of key i; NULL: i */
    uint8_t *rows;         /* row j at rows + j * row_bytes */
    uint8_t *found;        /* [n] enum hps_redis_found; valid once the command is answered */
    uint32_t n_found;      /* out, like n_misfit */
    uint32_t n_misfit;
    /* Rows of another width for the keys after these; its n_lead is ignored. NULL: none. */
    struct hps_redis_rows *more;
};

#define HPS_REDIS_ERROR_MAX 320 /* fits the longest MOVED */

/* Destination and result of one reply. */
struct hps_redis_reply {
    struct hps_redis_values *values; /* NULL: values are checked and dropped */
    struct hps_redis_rows *rows;     /* NULL: everything goes to `values` */
    /* OK, or the meaning of a server error:
     *   NOT_FOUND     NOSCRIPT
     *   EXHAUSTED     OOM: over maxmemory
     *   PERMISSION    NOPERM, NOAUTH, WRONGPASS
     *   UNAVAILABLE   LOADING, CLUSTERDOWN, MASTERDOWN, BUSY, READONLY, MISCONF, NOREPLICAS, MOVED…
     *   INVALID       WRONGTYPE
     *   ABORTED       any other, including errors of scripts; UNAVAILABLE if it says "cluster is
     * down" */
    hps_status status;
    /* Text of the server's error, truncated and without the arguments of a command. Unprintable
     * bytes are escaped. "": no server error. */
    char error[HPS_REDIS_ERROR_MAX];
};

enum { HPS_REDIS_ERROR_KINDS = 17 };
/* A number below HPS_REDIS_ERROR_KINDS for the first word of a server error. ERR and all unknown
 * words share one number. */
unsigned hps_redis_error_kind(const char *text, size_t size);

struct hps_redis_reader;

/* A reader buffers at most bytes_max of an incomplete reply. NULL: no memory. */
struct hps_redis_reader *hps_redis_reader_new(size_t bytes_max);
void hps_redis_reader_free(struct hps_redis_reader *reader); /* NULL: no effect */
/* Add bytes from the peer. EXHAUSTED, NO_MEMORY: close the connection. */
hps_status hps_redis_reader_feed(struct hps_redis_reader *reader, const void *data, size_t size)
    HPS_MUST_CHECK;
/* Decode the next reply into `reply`, which must stay the same until the reply is complete. OK:
 * complete; AGAIN: feed more. Any other status means: close the connection. IO: malformed, or not
 * the expected form (see `err`); EXHAUSTED, NO_MEMORY: over a limit. */
hps_status hps_redis_reader_next(struct hps_redis_reader *reader, struct hps_redis_reply *reply,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Bytes fed that belong to no reply yet. */
size_t hps_redis_reader_pending(const struct hps_redis_reader *reader);

#endif
