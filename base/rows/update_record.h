/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of update records as they lie in Kafka, and the names of their topics. Pure functions,
 * nothing is allocated: what was decoded points into the record. Any thread.
 *
 *   topic hps_et.<model>.<table>
 *     HCTR    key: none or empty    value: "HCTR", u32 value_size, then n times: key, value
 *             HPS's own record; keys are 8 bytes (`supportlonglong`) or 4; values are float32.
 *             8 bytes and no pairs are a beacon.
 *     KEYED   key: int64 LE         value: a row, or null: the key is deleted. The row is float32,
 *             or as the table stores its rows: its width says which, as no other stored type of
 *             any dim is as wide as float32 of that dim.
 *   topic hps_et.<model>, or that of a table
 *     PACKED  key: none or empty    value: "HPS1", u32 format version, hps.v1.UpdateBatch
 *
 * All integers are little-endian. Which form a record has is seen from itself.
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
    HPS_UPDATE_HEAD_BYTES = 8,             /* "HCTR" + value_size; "HPS1" + format version */
    HPS_UPDATE_KEY_BYTES = 8,              /* of a keyed record */
    HPS_UPDATE_RECORD_BYTES_MAX = 1 << 27, /* 128 MiB: what HPS's consumer fetches at most */
    HPS_UPDATE_PACKED_VERSION = 1,
    HPS_UPDATE_NAME_BYTES = 121,     /* of a model or table, with its NUL */
    HPS_UPDATE_TOPIC_BYTES_MAX = 249 /* with its NUL; names have at most 120 bytes each */
};

/* Headers of a keyed or HCTR record. 8 bytes, LE: the version that it is for (int64, > 0), and the
 * version of the row (u64) for tables that compare it. Text: the type of the row (hps_dtype_name),
 * as types of one width cannot be told apart. */
#define HPS_UPDATE_HEADER_VERSION     "hps-version"
#define HPS_UPDATE_HEADER_ROW_VERSION "hps-row-version"
#define HPS_UPDATE_HEADER_DTYPE       "hps-dtype"

enum hps_update_form { HPS_UPDATE_HCTR = 1, HPS_UPDATE_KEYED, HPS_UPDATE_PACKED };

/* Why a record is bad. X(NAME, label of metrics) */
#define HPS_UPDATE_REJECT_LIST(X)                                                          \
    X(NONE, "none")                                                                        \
    X(KEY, "key")             /* neither empty nor 8 bytes; or a null value without key */ \
    X(MAGIC, "magic")         /* begins with neither HCTR nor HPS1 */                      \
    X(TRUNCATED, "truncated") /* ends within its head or a pair */                         \
    X(WIDTH, "width")         /* neither float32[dim] nor a row as it is stored */         \
    X(TOO_LARGE, "too_large") /* HPS_UPDATE_RECORD_BYTES_MAX */                            \
    X(NEWER_FORMAT, "newer_format")

enum hps_update_reject {
#define HPS_UPDATE_REJECT_ENUM(name, label) HPS_UPDATE_REJECT_##name,
    HPS_UPDATE_REJECT_LIST(HPS_UPDATE_REJECT_ENUM)
#undef HPS_UPDATE_REJECT_ENUM
};

/* A hash of what a record says, to know it again by; NULL and empty are different. */
uint64_t hps_update_record_hash(const void *key, size_t key_size, const void *value,
                                size_t value_size);

const char *hps_update_reject_text(enum hps_update_reject reject); /* static */
const char *hps_update_form_text(enum hps_update_form form);       /* "hctr", "keyed", "packed" */

/* What the table says that the topic names. */
struct hps_update_shape {
    uint32_t key_bytes;   /* of HCTR pairs: 8 or 4 */
    uint32_t dim;         /* values per row; 0: not checked, as on a topic without a table */
    enum hps_dtype dtype; /* as the table stores rows; 0: float32 */
};

/* Points into the record. */
struct hps_update_record {
    enum hps_update_form form;
    enum hps_update_reject reject; /* NONE when decoded */
    uint32_t n;                    /* HCTR: pairs; KEYED: 1; PACKED: 0, the batch tells */
    uint32_t key_bytes;            /* of the pairs */
    uint32_t row_bytes;            /* of a row; a delete: 0 */
    enum hps_dtype dtype;          /* of the rows: FP32 or the table's; 0: not known without dim */
    /* HCTR: the pairs; KEYED: the row, NULL: a delete; PACKED: the UpdateBatch. */
    const uint8_t *body;
    size_t body_size;
    hps_key key; /* KEYED */
};

/* Decode a record. key, value: NULL is Kafka's null (sizes are then 0); an empty one is not NULL.
 *
 * out_record  set in any case: `form` when it is known, and why it was rejected
 * error       INVALID, with a text that names what was found and what was expected
 */
hps_status hps_update_record_decode(const void *key, size_t key_size, const void *value,
                                    size_t value_size, const struct hps_update_shape *shape,
                                    struct hps_update_record *out_record, struct hps_error *err)
    HPS_MUST_CHECK;
/* A keyed record that deletes its key. */
static inline bool hps_update_record_deletes(const struct hps_update_record *record)
{
    return record->form == HPS_UPDATE_KEYED && record->body == NULL;
}
/* Copy keys [n] and rows [n][row_bytes] of an HCTR or KEYED record; rows may be NULL. */
void hps_update_record_copy(const struct hps_update_record *record, hps_key *out_keys,
                            uint8_t *out_rows);

/* A header of 8 bytes; false: it has another size. */
bool hps_update_header_decode(const void *data, size_t size, uint64_t *out_value);

/* ---- encode ---------------------------------------------------------------------------------- */

/* Bytes of an HCTR record of n pairs. */
static inline size_t hps_update_hctr_bytes(size_t n, uint32_t key_bytes, uint32_t row_bytes)
{
    return HPS_UPDATE_HEAD_BYTES + n * ((size_t)key_bytes + row_bytes);
}
/* Write it. With key_bytes 4 every key must be below 2^32. out: [hps_update_hctr_bytes] */
void hps_update_hctr_encode(const hps_key *keys, const void *rows, size_t n, uint32_t key_bytes,
                            uint32_t row_bytes, uint8_t *out_bytes);
/* The key of a keyed record, and the value of a header. */
void hps_update_u64_encode(uint64_t value, uint8_t out_bytes[HPS_UPDATE_KEY_BYTES]);
/* What stands before the UpdateBatch of a packed record. */
void hps_update_packed_head(uint8_t out_bytes[HPS_UPDATE_HEAD_BYTES]);

/* The partition, of n > 0, where Kafka's default partitioner for Java (murmur2) puts a keyed record
 * of this key. Records of all forms are sent there, so that those of one key keep their order. */
uint32_t hps_update_partition(hps_key key, uint32_t n_partitions);

/* ---- topics ---------------------------------------------------------------------------------- */

/* "hps_et.<model>.<table>"; table NULL: "hps_et.<model>". Names are valid (base/rows/modeldir.h).
 */
void hps_update_topic_format(const char *model, const char *table,
                             char out_topic[HPS_UPDATE_TOPIC_BYTES_MAX]);

struct hps_update_topic {
    char model[HPS_UPDATE_NAME_BYTES];
    char table[HPS_UPDATE_NAME_BYTES]; /* "": the topic of the whole model */
};

/* false: no topic of updates, or names that are not valid. */
bool hps_update_topic_parse(const char *topic, struct hps_update_topic *out_topic);

#endif
