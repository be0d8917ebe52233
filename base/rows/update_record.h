/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of update records in Kafka, and the names of their topics. Pure functions without
 * allocation; decoded records point into the input. Any thread.
 *
 *   topic hps_et.<model>.<table>
 *     HCTR    key: null or empty    value: "HCTR", u32 row_bytes, then n pairs: key, row
 *             The format of HPS. Keys have 8 bytes (`supportlonglong`) or 4; rows are float32.
 *             A record without pairs (8 bytes) is a beacon, which changes no rows.
 *     KEYED   key: int64 LE         value: a row; null deletes the key. The row is float32 or of
 *             the stored type of the table. The size of the row shows which of the two, because
 *             for the same dim no other stored type has the size of float32.
 *   topic hps_et.<model>, or the topic of a table
 *     PACKED  key: null or empty    value: "HPS1", u32 format version, hps.v1.UpdateBatch
 *
 * All integers are little-endian. The form of a record is recognised from its bytes.
 */
#ifndef HPS_BASE_ROWS_UPDATE_RECORD_H
#define HPS_BASE_ROWS_UPDATE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "base/types.h"

enum {
    HPS_UPDATE_HEAD_BYTES = 8,             /* "HCTR" + row_bytes; "HPS1" + format version */
    HPS_UPDATE_KEY_BYTES = 8,              /* of a keyed record */
    HPS_UPDATE_RECORD_BYTES_MAX = 1 << 27, /* 128 MiB: fetch limit of HPS's consumer */
    HPS_UPDATE_PACKED_VERSION = 1,
    HPS_UPDATE_NAME_BYTES = 121,     /* of a model or table, with its NUL */
    HPS_UPDATE_TOPIC_BYTES_MAX = 249 /* with its NUL; names have at most 120 bytes each */
};

/* Headers of a keyed or HCTR record:
 *   VERSION      int64 LE, > 0: the model version that the record is for
 *   ROW_VERSION  u64 LE: the row version, for tables with `row_versions`
 *   DTYPE        text (hps_dtype_name): the type of the row, since two types can have one size */
#define HPS_UPDATE_HEADER_VERSION     "hps-version"
#define HPS_UPDATE_HEADER_ROW_VERSION "hps-row-version"
#define HPS_UPDATE_HEADER_DTYPE       "hps-dtype"

enum hps_update_form { HPS_UPDATE_HCTR = 1, HPS_UPDATE_KEYED, HPS_UPDATE_PACKED };

/* Why a record is rejected. X(NAME, label of the reason in metrics) */
#define HPS_UPDATE_REJECT_LIST(X)                                                                 \
    X(NONE, "none")                                                                               \
    X(KEY, "key")     /* the key has neither 0 nor 8 bytes; or it has 0, and the value is null */ \
    X(MAGIC, "magic") /* the value begins with neither HCTR nor HPS1 */                           \
    X(TRUNCATED, "truncated") /* the value ends within its head or a pair */                      \
    X(WIDTH, "width")         /* the size of a row is that of no accepted type */                 \
    X(TOO_LARGE, "too_large") /* the value exceeds HPS_UPDATE_RECORD_BYTES_MAX */                 \
    X(NEWER_FORMAT, "newer_format")

enum hps_update_reject {
#define HPS_UPDATE_REJECT_ENUM(name, label) HPS_UPDATE_REJECT_##name,
    HPS_UPDATE_REJECT_LIST(HPS_UPDATE_REJECT_ENUM)
#undef HPS_UPDATE_REJECT_ENUM
};

/* A hash of the key and value of a record, to recognise it later. NULL differs from an empty key or
 * value. */
uint64_t hps_update_record_hash(const void *key, size_t key_size, const void *value,
                                size_t value_size);

const char *hps_update_reject_text(enum hps_update_reject reject); /* static */
const char *hps_update_form_text(enum hps_update_form form);       /* "hctr", "keyed", "packed" */

/* The shape of rows of the topic's table. */
struct hps_update_shape {
    uint32_t key_bytes;   /* size of a key in an HCTR record: 8 or 4 */
    uint32_t dim;         /* values per row; 0: unknown, so widths are not checked */
    enum hps_dtype dtype; /* stored type of the table; 0: float32 */
};

/* A decoded record. It points into the bytes that were decoded. */
struct hps_update_record {
    enum hps_update_form form;
    enum hps_update_reject reject; /* NONE: the record was decoded */
    uint32_t n;                    /* HCTR: number of pairs; KEYED: 1; PACKED: 0 */
    uint32_t key_bytes;            /* HCTR: size of each key */
    uint32_t row_bytes;            /* size of a row; 0: a delete */
    enum hps_dtype dtype;          /* type of the rows; 0: not known, because dim is 0 (KEYED) */
    /* HCTR: the pairs; KEYED: the row, or NULL for a delete; PACKED: the UpdateBatch. */
    const uint8_t *body;
    size_t body_size;
    hps_key key; /* KEYED: the key */
};

/* Decode a record. A null key or value of Kafka is passed as NULL, with size 0. For an empty key or
 * value, the pointer is not NULL.
 *
 * out_record  always set: `form` if known, and the reason of a rejection
 * error       INVALID: the record is rejected; the text names the given and the expected content
 */
hps_status hps_update_record_decode(const void *key, size_t key_size, const void *value,
                                    size_t value_size, const struct hps_update_shape *shape,
                                    struct hps_update_record *out_record, struct hps_error *err)
    HPS_MUST_CHECK;
/* Whether this is a keyed record that deletes its key. */
static inline bool hps_update_record_deletes(const struct hps_update_record *record)
{
    return record->form == HPS_UPDATE_KEYED && record->body == NULL;
}
/* Copy the keys [n] and rows [n][row_bytes] of an HCTR or KEYED record. out_rows may be NULL. A
 * delete has no row. */
void hps_update_record_copy(const struct hps_update_record *record, hps_key *out_keys,
                            uint8_t *out_rows);

/* Decode the value of a VERSION or ROW_VERSION header. False: it does not have 8 bytes. */
bool hps_update_header_decode(const void *data, size_t size, uint64_t *out_value);

/* ---- encode ---------------------------------------------------------------------------------- */

/* Size in bytes of the value of an HCTR record of n pairs. */
static inline size_t hps_update_hctr_bytes(size_t n, uint32_t key_bytes, uint32_t row_bytes)
{
    return HPS_UPDATE_HEAD_BYTES + n * ((size_t)key_bytes + row_bytes);
}
/* Write the value of an HCTR record of n pairs. If key_bytes is 4, every key must be below 2^32.
 * out_bytes has the size that hps_update_hctr_bytes returns. */
void hps_update_hctr_encode(const hps_key *keys, const void *rows, size_t n, uint32_t key_bytes,
                            uint32_t row_bytes, uint8_t *out_bytes);
/* Encode the key of a keyed record, or the value of a header. */
void hps_update_u64_encode(uint64_t value, uint8_t out_bytes[HPS_UPDATE_KEY_BYTES]);
/* Encode the head of a packed record. The UpdateBatch follows it. */
void hps_update_packed_head(uint8_t out_bytes[HPS_UPDATE_HEAD_BYTES]);

/* The partition (0 to n_partitions - 1) that Kafka's default partitioner for Java (murmur2) chooses
 * for this key. Records of all forms use it, so that records of one key keep their order. */
uint32_t hps_update_partition(hps_key key, uint32_t n_partitions);

/* ---- topics ---------------------------------------------------------------------------------- */

/* Write "hps_et.<model>.<table>", or "hps_et.<model>" if table is NULL. Both names must be valid
 * (base/rows/modeldir.h). */
void hps_update_topic_format(const char *model, const char *table,
                             char out_topic[HPS_UPDATE_TOPIC_BYTES_MAX]);

struct hps_update_topic {
    char model[HPS_UPDATE_NAME_BYTES];
    char table[HPS_UPDATE_NAME_BYTES]; /* "": topic of the whole model */
};

/* Parse the name of a topic. False: it is not a topic of updates, or model or table is invalid. */
bool hps_update_topic_parse(const char *topic, struct hps_update_topic *out_topic);

#endif
