/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the encoder: encode_head.c (heads), encode.c (the reply as one message),
 * encode_stream.c (the reply as several messages). One thread at a time.
 *
 * In protobuf, the tag and the length of a result precede it, but the length is known only after
 * the head of the result is written. So the head is written after a gap, and the tag and length are
 * then written at the end of the gap. The rows of the result follow as their own slice:
 *
 *     heads block   [ response head ][ gap | tag, length | result head ][ gap | ... ]
 *
 * With ROW_LAYOUT_CONCAT the rows of all results form one matrix, which is one slice after the
 * heads of all results.
 */
#ifndef HPS_SERVER_LOOKUP_ENCODE_INTERNAL_H
#define HPS_SERVER_LOOKUP_ENCODE_INTERNAL_H

#include <string.h>

#include "base/assert.h"
#include "server/lookup/encode.h"
#include "server/rpc/wire.h"

/* Additional bytes in a block of heads, for the tag and the length of the matrix. */
enum { ENCODE_MARGIN = 64 };

/* The values of one TableResult. */
struct result {
    const char *table;
    uint32_t dim;
    enum hps_dtype dtype;
    uint32_t n_rows; /* with pooling one for each bag, else one for each key */
    uint32_t n_keys;
    uint32_t n_unique;
    uint32_t n_defaulted;
    uint32_t n_unknown;
    const uint8_t *key_status;           /* [n_keys]; NULL: all keys were found */
    uint32_t tier_found[HPS_TIER_COUNT]; /* unique keys that were found in each tier */
    uint64_t column;                     /* first column in the matrix; 0 without a matrix */
    const uint8_t *rows;
    uint64_t rows_bytes; /* 0: there are no rows, or they are in the matrix */
};

/* The values that are in each message of a reply. */
struct head {
    const char *model;
    int64_t version;
    const char *label; /* may be NULL */
    uint64_t update_sequence;
    int64_t event_time_ms;
};

static inline size_t text_size(const char *text)
{
    return text == NULL ? 0 : strlen(text);
}

/* ---- encode_head.c --------------------------------------------------------------------------- */

/* The head of a lookup's reply. Its strings point into the version. */
struct head encode_head(const struct hps_lookup *lookup);

/* Upper bound of the bytes of a head. */
uint64_t encode_head_bytes_max(const struct head *head);
/* Upper bound of the bytes of a result. Its rows and key status are not included. */
uint64_t encode_result_bytes_max(const char *table, uint32_t n_tiers);
/* Upper bound of the bytes of the field `explain`; 0 if `explain` is NULL. */
uint64_t encode_explain_bytes_max(const struct hps_encode_explain *explain);

/* Each of the next four functions writes to `out`, a part of the block `heads`, and appends the
 * written bytes to `encoded` as a slice of `heads`. encode_add_result and encode_add_matrix then
 * append the rows as a slice of the block `rows`. `out` and encoded->slices must have space. */
void encode_add_head(struct hps_encoded *encoded, struct out *out, const struct head *head,
                     struct hps_block *heads);
void encode_add_result(struct hps_encoded *encoded, struct out *out, const struct result *result,
                       struct hps_block *heads, struct hps_block *rows);
void encode_add_explain(struct hps_encoded *encoded, struct out *out,
                        const struct hps_encode_explain *explain, struct hps_block *heads);
/* matrix[size]: whole rows of the matrix. No effect if size is 0. */
void encode_add_matrix(struct hps_encoded *encoded, struct out *out, const uint8_t *matrix,
                       uint64_t size, struct hps_block *heads, struct hps_block *rows);

#endif
