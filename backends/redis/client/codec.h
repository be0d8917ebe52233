/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis's protocol (RESP2): commands as bytes, and replies read straight to where they are wanted,
 * rows into the caller's rows. Nothing is allocated per value. Used by one thread at a time.
 */
#ifndef HPS_BACKENDS_REDIS_CLIENT_CODEC_H
#define HPS_BACKENDS_REDIS_CLIENT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* ---- commands -------------------------------------------------------------------------------- */

/* A command is its number of arguments (its name counts), then that many arguments, each appended
 * to `buf`. EXHAUSTED past the buffer's size_max, NO_MEMORY; the buffer then holds half a command.
 */
hps_status hps_redis_put_begin(struct hps_buf *buf, uint32_t n_args) HPS_MUST_CHECK;
hps_status hps_redis_put_arg(struct hps_buf *buf, const void *data, size_t size) HPS_MUST_CHECK;
hps_status hps_redis_put_text(struct hps_buf *buf, const char *text) HPS_MUST_CHECK;
hps_status hps_redis_put_u64(struct hps_buf *buf, uint64_t value) HPS_MUST_CHECK; /* decimal */
/* `n` arguments of `size` bytes each, one after another in memory: keys as fields. */
hps_status hps_redis_put_args(struct hps_buf *buf, const void *data, size_t size, uint32_t n)
    HPS_MUST_CHECK;
/* The whole of a command of texts. */
hps_status hps_redis_put_command(struct hps_buf *buf, uint32_t n_args, const char *const *args)
    HPS_MUST_CHECK;

/* ---- replies --------------------------------------------------------------------------------- */

enum hps_redis_type {
    HPS_REDIS_NIL,
    HPS_REDIS_INT,
    HPS_REDIS_TEXT,  /* a string, or a status like "OK" */
    HPS_REDIS_ERROR, /* within an array; that of a whole reply is the command's */
    HPS_REDIS_ARRAY  /* its elements follow it, each with all of its own */
};

struct hps_redis_value {
    enum hps_redis_type type;
    uint32_t at;    /* TEXT, ERROR: begins at text.data + at; a NUL stands behind it */
    uint32_t size;  /* TEXT, ERROR: bytes; ARRAY: elements */
    int64_t number; /* INT */
};

/* A reply of any form, in the order in which it came. May be used again: memory is kept. */
struct hps_redis_values {
    struct hps_redis_value *items; /* [n] */
    uint32_t n;
    uint32_t capacity;
    uint32_t n_max;
    struct hps_buf text;
};

/* At most n_max values with text_max bytes of text: a reply beyond is an error (EXHAUSTED) and the
 * end of its connection. Allocates nothing. */
void hps_redis_values_init(struct hps_redis_values *values, uint32_t n_max, size_t text_max);
void hps_redis_values_fini(struct hps_redis_values *values);
/* Text of a TEXT or ERROR value, ended by NUL; "" for others. */
const char *hps_redis_values_text(const struct hps_redis_values *values, uint32_t i);
/* Of an INT, or of a TEXT that is a decimal number. False: neither. */
bool hps_redis_values_i64(const struct hps_redis_values *values, uint32_t i, int64_t *out_number);
/* The same for unsigned numbers. */
bool hps_redis_values_u64(const struct hps_redis_values *values, uint32_t i, uint64_t *out_number);
/* The value that comes after value i and all of its elements. */
uint32_t hps_redis_values_next(const struct hps_redis_values *values, uint32_t i);

/* What became of one key of a command for rows. */
enum hps_redis_found {
    HPS_REDIS_ROW_ABSENT, /* nil */
    HPS_REDIS_ROW_FOUND,  /* and copied */
    HPS_REDIS_ROW_MISFIT, /* a value of another size: nothing was copied */
};

/* A reply that is an array of `n_lead` values of any form and then of one row or nil per key; any
 * other one is a protocol error, but for an error of the server. */
struct hps_redis_rows {
    uint32_t n_lead; /* go to the command's `values` */
    uint32_t n;      /* keys */
    uint32_t row_bytes;
    const uint32_t *slots; /* [n] row number in `rows` of key i; NULL: i */
    uint8_t *rows;         /* row j at rows + j * row_bytes */
    uint8_t *found;        /* [n] enum hps_redis_found; meaningful when the command was answered */
    uint32_t n_found;      /* out, as n_misfit */
    uint32_t n_misfit;
    struct hps_redis_rows *more; /* for the keys after these, of other widths; its n_lead is not
                                    looked at. NULL: there are none */
};

#define HPS_REDIS_ERROR_MAX 320 /* holds the longest MOVED */

/* Where one reply goes, and what it was. */
struct hps_redis_reply {
    struct hps_redis_values *values; /* NULL: values are only checked and dropped */
    struct hps_redis_rows *rows;     /* NULL: everything goes to `values` */
    /* OK, or what an error of the server stands for:
     *   NOT_FOUND     NOSCRIPT
     *   EXHAUSTED     OOM: over maxmemory
     *   PERMISSION    NOPERM, NOAUTH, WRONGPASS
     *   UNAVAILABLE   LOADING, CLUSTERDOWN, MASTERDOWN, BUSY, READONLY, MISCONF, NOREPLICAS, MOVED…
     *   INVALID       WRONGTYPE
     *   ABORTED       any other, those that scripts raise included */
    hps_status status;
    /* Text of the server's error, cut, without the arguments of a command. Unprintable bytes are
     * escaped. "": the server sent no error. */
    char error[HPS_REDIS_ERROR_MAX];
};

enum { HPS_REDIS_ERROR_KINDS = 17 };
/* A number below HPS_REDIS_ERROR_KINDS for the first word of an error of the server. ERR and all
 * unknown words have the same one. */
unsigned hps_redis_error_kind(const char *text, size_t size);

struct hps_redis_reader;

/* A reader takes no more than bytes_max of a reply that is not complete. NULL: no memory. */
struct hps_redis_reader *hps_redis_reader_new(size_t bytes_max);
void hps_redis_reader_free(struct hps_redis_reader *reader); /* NULL is legal */
/* Bytes from the peer. EXHAUSTED, NO_MEMORY: the connection must be closed. */
hps_status hps_redis_reader_feed(struct hps_redis_reader *reader, const void *data, size_t size)
    HPS_MUST_CHECK;
/* The next reply into `reply`, which stays the same until it is complete. OK: it is. AGAIN: feed
 * more. IO: no protocol that we know, or a reply of another form than asked for (`err` says
 * which); EXHAUSTED, NO_MEMORY: over a limit; the connection must then be closed. */
hps_status hps_redis_reader_next(struct hps_redis_reader *reader, struct hps_redis_reply *reply,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Bytes that have been fed and are in no reply yet. */
size_t hps_redis_reader_pending(const struct hps_redis_reader *reader);

#endif
