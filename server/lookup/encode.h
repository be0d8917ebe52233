/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes LookupResponse as slices. The head of a result is everything except its rows. The heads
 * of all results are written into one small block. The rows are not copied: their slices are in the
 * block into which the lookup wrote them. One thread at a time.
 */
#ifndef HPS_SERVER_LOOKUP_ENCODE_H
#define HPS_SERVER_LOOKUP_ENCODE_H

#include "base/block.h"
#include "cache/lookup/lookup.h"
#include "net/grpc.h"

enum { HPS_STREAM_MESSAGE_BYTES_MAX = 1024 * 1024 };

struct hps_encode_stage {
    const char *name;
    uint64_t duration_us;
};

/* The field `explain` of a reply. The field is not sent if it has neither stages nor notes. */
struct hps_encode_explain {
    const struct hps_encode_stage *stages;
    uint32_t n_stages;
    const char *const *notes;
    uint32_t n_notes;
};

struct hps_encoded {
    struct hps_slice *slices; /* [n_slices] in the arena; each holds a reference to its block */
    unsigned n_slices;
    uint64_t size;    /* bytes of the message: the sum of all slices */
    size_t json_size; /* of a reply of KServe over HTTP: its JSON, at the front; else not set */
};

/* Appends the slice data[size] of `block`; no effect if size is 0. The array encoded->slices must
 * have space for it.
 * owner   the slice gets its own reference to the block */
static inline void hps_encoded_add(struct hps_encoded *encoded, struct hps_block *block,
                                   const void *data, uint64_t size)
{
    if (size == 0) {
        return;
    }
    hps_block_ref(block);
    encoded->slices[encoded->n_slices++] =
        (struct hps_slice){.block = block, .data = data, .size = (size_t)size};
    encoded->size += size;
}

/* Upper bound of the bytes of the whole reply as one message. The lookup must be planned; it need
 * not have run. */
uint64_t hps_encode_size_max(const struct hps_lookup *lookup);

/* Encodes the reply of a finished lookup as one message. explain: may be NULL; rows: the block
 * that holds lookup->rows.
 *
 * owner   the caller owns the references of the slices: hps_grpc_call_send takes them, or the
 *         caller releases them with hps_encoded_release
 * error   NO_MEMORY; EXHAUSTED: the arena is full */
hps_status hps_encode_lookup(const struct hps_lookup *lookup,
                             const struct hps_encode_explain *explain, struct hps_block *rows,
                             struct hps_block_pool *pool, struct hps_arena *arena,
                             struct hps_encoded *out_encoded) HPS_MUST_CHECK;
/* Releases the references of the slices, and empties *encoded. */
void hps_encoded_release(struct hps_encoded *encoded);

/* Encodes a reply as several messages of at most HPS_STREAM_MESSAGE_BYTES_MAX bytes each; a message
 * with a single row may be larger. A message has consecutive rows of one query. With
 * ROW_LAYOUT_CONCAT, the rows of all queries form one matrix, and a message has consecutive rows of
 * the matrix. The messages are in the order of the queries. The reply to a request without queries
 * is one message without results.
 *
 * The stream is in the arena. It borrows `lookup`, `rows`, `pool` and the pointers in `explain` for
 * its life; lookup->version may be unpinned after hps_stream_new. */
struct hps_stream;

/* Begins the reply stream of a finished lookup. explain: may be NULL.
 * error   EXHAUSTED: the arena is full */
hps_status hps_stream_new(const struct hps_lookup *lookup, const struct hps_encode_explain *explain,
                          struct hps_block *rows, struct hps_block_pool *pool,
                          struct hps_arena *arena, struct hps_stream **out_stream) HPS_MUST_CHECK;
/* Whether all messages were encoded. */
bool hps_stream_done(const struct hps_stream *stream);
/* Encodes the next message; hps_stream_done must be false. The array out_encoded->slices is valid
 * until the next call.
 *
 * owner   the references of the slices, as in hps_encode_lookup
 * error   NO_MEMORY */
hps_status hps_stream_next(struct hps_stream *stream, struct hps_encoded *out_encoded)
    HPS_MUST_CHECK;

#endif
