/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the encoder: encode_head.c (heads), encode.c (the reply as one message),
 * encode_stream.c (as several). One thread at a time.
 *
 * A head is written behind a gap, into which its tag and length are written afterwards, directly
 * before the head. The rows of the table follow as their own slice:
 *
 *     heads block   [ response head ][ gap | tag, length | result head ][ gap | ... ]
 *
 * A matrix (ROW_LAYOUT_CONCAT) is one slice, after the heads of all results.
 */
#ifndef HPS_SERVER_LOOKUP_ENCODE_INTERNAL_H
#define HPS_SERVER_LOOKUP_ENCODE_INTERNAL_H

#include <string.h>

#include "base/assert.h"
#include "server/lookup/encode.h"
#include "server/rpc/wire.h"

/* Spare bytes of a block of heads; they include the tag and length of a matrix. */
enum { ENCODE_MARGIN = 64 };

/* The values of one TableResult. */
struct result {
    const char *table;
    uint32_t dim;
    enum hps_dtype dtype;
    uint32_t n_rows; /* bags, or keys */
    uint32_t n_keys;
    uint32_t n_unique;
    uint32_t n_defaulted;
    uint32_t n_unknown;
    const uint8_t *key_status;           /* [n_keys], NULL: all found */
    uint32_t tier_found[HPS_TIER_COUNT]; /* by kind */
    uint64_t column;                     /* first column in the matrix; 0 without a matrix */
    const uint8_t *rows;
    uint64_t rows_bytes; /* 0: the rows are in the matrix */
};

/* The values that each message has. */
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

/* The strings point into the version. */
struct head encode_head(const struct hps_lookup *lookup);

uint64_t encode_head_bytes_max(const struct head *head);
/* Bytes of a result without its rows and key status. */
uint64_t encode_result_bytes_max(const char *table, uint32_t n_tiers);
uint64_t encode_explain_bytes_max(const struct hps_encode_explain *explain); /* NULL: none */

/* Each writes to `out` and adds the bytes to `encoded` as a slice of `heads`, and rows as a slice
 * of `rows`. `encoded` must have space for both. */
void encode_add_head(struct hps_encoded *encoded, struct out *out, const struct head *head,
                     struct hps_block *heads);
void encode_add_result(struct hps_encoded *encoded, struct out *out, const struct result *result,
                       struct hps_block *heads, struct hps_block *rows);
void encode_add_explain(struct hps_encoded *encoded, struct out *out,
                        const struct hps_encode_explain *explain, struct hps_block *heads);
/* Adds `size` bytes of whole rows of the matrix; no effect if 0. */
void encode_add_matrix(struct hps_encoded *encoded, struct out *out, const uint8_t *matrix,
                       uint64_t size, struct hps_block *heads, struct hps_block *rows);

#endif
