/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis's protocol (RESP2). Commands are encoded as bytes. Replies are decoded directly into the
 * caller's memory, without an allocation per value. Not thread-safe.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CODEC_H
#define HPS_BACKENDS_REDIS_CLIENT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* ---- commands -------------------------------------------------------------------------------- */

/* Append a command to `buf` in parts: first n_args, the number of arguments, then each argument.
 * The name of the command is the first argument.
 * error   EXHAUSTED: the command exceeds the buffer's size_max; NO_MEMORY. After an error `buf` has
 *         an incomplete command */
hps_status hps_redis_put_begin(struct hps_buf *buf, uint32_t n_args) HPS_MUST_CHECK;
hps_status hps_redis_put_arg(struct hps_buf *buf, const void *data, size_t size) HPS_MUST_CHECK;
hps_status hps_redis_put_text(struct hps_buf *buf, const char *text) HPS_MUST_CHECK;
hps_status hps_redis_put_u64(struct hps_buf *buf, uint64_t value) HPS_MUST_CHECK; /* decimal */
/* `n` arguments of `size` bytes each, contiguous in memory; for example fields of rows. */
hps_status hps_redis_put_args(struct hps_buf *buf, const void *data, size_t size, uint32_t n)
    HPS_MUST_CHECK;
/* Append a complete command. args[0] is its name, and all arguments are strings. */
hps_status hps_redis_put_command(struct hps_buf *buf, uint32_t n_args, const char *const *args)
    HPS_MUST_CHECK;

/* ---- replies --------------------------------------------------------------------------------- */

enum hps_redis_type {
    HPS_REDIS_NIL,
    HPS_REDIS_INT,
    HPS_REDIS_TEXT,  /* a string, or a status like "OK" */
    HPS_REDIS_ERROR, /* an error inside an array; any other error sets the reply's status */
    HPS_REDIS_ARRAY  /* its elements follow it; an element may be an array with its own elements */
};

struct hps_redis_value {
    enum hps_redis_type type;
    uint32_t at;    /* TEXT, ERROR: the text, at hps_redis_values.text.data + at */
    uint32_t size;  /* TEXT, ERROR: bytes; ARRAY: elements */
    int64_t number; /* INT: the value */
};

/* The values of a reply, in order of arrival, without nesting. Its memory is kept for the next
 * reply. */
struct hps_redis_values {
    struct hps_redis_value *items; /* [n] */
    uint32_t n;
    uint32_t capacity;
    uint32_t n_max; /* limit of n */
    struct hps_buf text;
};

/* Initialize for replies of at most n_max values and text_max bytes of text. A larger reply is an
 * error (EXHAUSTED), after which the connection is closed. Allocates nothing. */
void hps_redis_values_init(struct hps_redis_values *values, uint32_t n_max, size_t text_max);
void hps_redis_values_fini(struct hps_redis_values *values);
/* The NUL-terminated text of a TEXT or ERROR value; "" for other types. */
const char *hps_redis_values_text(const struct hps_redis_values *values, uint32_t i);
/* The value of an INT, or of a TEXT that is a decimal number. False: neither. */
bool hps_redis_values_i64(const struct hps_redis_values *values, uint32_t i, int64_t *out_number);
/* Same as hps_redis_values_i64, for unsigned numbers. */
bool hps_redis_values_u64(const struct hps_redis_values *values, uint32_t i, uint64_t *out_number);
/* Index of the value after value i and all its elements. */
uint32_t hps_redis_values_next(const struct hps_redis_values *values, uint32_t i);

/* Result for one key of a command that requests rows. */
enum hps_redis_found {
    HPS_REDIS_ROW_ABSENT, /* the reply has nil */
    HPS_REDIS_ROW_FOUND,  /* the reply has a row, which was copied */
    HPS_REDIS_ROW_MISFIT, /* the reply has a value of another size; nothing was copied */
};

/* Destination of a reply that must be an array: first `n_lead` values of any type, then one row or
 * nil for each key. Any other reply, except a server error, is a protocol error. */
struct hps_redis_rows {
    uint32_t n_lead; /* number of values before the rows; they go to the reply's `values` */
    uint32_t n;      /* number of keys */
    uint32_t row_bytes;
    const uint32_t *slots; /* [n] row number of key i; NULL: the row number is i */
    uint8_t *rows;         /* row number j is at rows + j * row_bytes */
    uint8_t *found;        /* [n] result for key i: enum hps_redis_found; valid after the reply */
    uint32_t n_found;      /* result: number of rows found */
    uint32_t n_misfit;     /* result: number of values of another size */
    /* Destination of further rows of the same reply, which have another width. Its n_lead is
     * ignored. NULL: the reply has no further rows. */
    struct hps_redis_rows *more;
};

#define HPS_REDIS_ERROR_MAX 320 /* bytes; enough for the longest MOVED error */

/* Destination and result of one reply. */
struct hps_redis_reply {
    struct hps_redis_values *values; /* NULL: values are checked, but not stored */
    struct hps_redis_rows *rows;     /* NULL: a reply without rows; all values go to `values` */
    /* OK, or the meaning of a server error:
     *   NOT_FOUND     NOSCRIPT
     *   EXHAUSTED     OOM: over maxmemory
     *   PERMISSION    NOPERM, NOAUTH, WRONGPASS
     *   UNAVAILABLE   LOADING, CLUSTERDOWN, MASTERDOWN, BUSY, READONLY, MISCONF, NOREPLICAS, MOVED…
     *   INVALID       WRONGTYPE
     *   ABORTED       any other error, including errors of scripts, except an error with the text
     *                 "cluster is down", which is UNAVAILABLE */
    hps_status status;
    /* Text of the server's error, truncated and without the arguments of a command. Unprintable
     * bytes are escaped. "": no server error. */
    char error[HPS_REDIS_ERROR_MAX];
};

enum { HPS_REDIS_ERROR_KINDS = 17 };
/* A number below HPS_REDIS_ERROR_KINDS for the first word of a server error, such as MOVED. ERR and
 * all unknown words have the same number. */
unsigned hps_redis_error_kind(const char *text, size_t size);

struct hps_redis_reader;

/* Create a reader, which buffers at most bytes_max of undecoded bytes. NULL: no memory. */
struct hps_redis_reader *hps_redis_reader_new(size_t bytes_max);
void hps_redis_reader_free(struct hps_redis_reader *reader); /* NULL: no effect */
/* Add bytes from the server. EXHAUSTED: over bytes_max; NO_MEMORY. After an error, the caller must
 * close the connection. */
hps_status hps_redis_reader_feed(struct hps_redis_reader *reader, const void *data, size_t size)
    HPS_MUST_CHECK;
/* Decode the next reply into `reply`. OK: it is complete. AGAIN: feed more bytes, then call again
 * with the same `reply`. After any other status, the caller must close the connection. IO:
 * malformed or not of the expected form; `err` has the reason. EXHAUSTED: over a limit; NO_MEMORY.
 */
hps_status hps_redis_reader_next(struct hps_redis_reader *reader, struct hps_redis_reply *reply,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Number of bytes that were fed but not decoded yet. */
size_t hps_redis_reader_pending(const struct hps_redis_reader *reader);

#endif
