/* SPDX-License-Identifier: Apache-2.0
 *
 * Encodes LookupResponse as slices. The heads are written into one small block. The rows are sent
 * from the block into which the lookup wrote them. One thread at a time.
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

/* The field `explain` of a reply; not sent if n_stages is 0. */
struct hps_encode_explain {
    const struct hps_encode_stage *stages;
    uint32_t n_stages;
    const char *const *notes;
    uint32_t n_notes;
};

struct hps_encoded {
    struct hps_slice *slices; /* [n_slices] in the arena; each holds a reference of its block */
    unsigned n_slices;
    uint64_t size; /* of the message */
};

/* Adds a slice, unless it is empty. The caller must have left space for it in encoded->slices.
 * owner   takes its own reference of the block */
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

/* Upper bound of the bytes of the whole reply as one message, before the lookup runs. */
uint64_t hps_encode_size_max(const struct hps_lookup *lookup);

/* Encodes the whole reply. `rows` is the block that holds lookup->rows. The caller sends the
 * slices, which passes their references on, or releases them with hps_encoded_release.
 *
 * error   NO_MEMORY; EXHAUSTED: the arena is full */
hps_status hps_encode_lookup(const struct hps_lookup *lookup,
                             const struct hps_encode_explain *explain, struct hps_block *rows,
                             struct hps_block_pool *pool, struct hps_arena *arena,
                             struct hps_encoded *out_encoded) HPS_MUST_CHECK;
void hps_encoded_release(struct hps_encoded *encoded);

/* The same reply as messages of at most HPS_STREAM_MESSAGE_BYTES_MAX; a message of one row may be
 * larger. Each message has consecutive rows of one part, in the order of the queries, or whole rows
 * of the matrix. A reply without queries is one empty message. `lookup`, `rows`, `pool` and the
 * pointers in `explain` are borrowed for the life of the stream; the version only for
 * hps_stream_new. */
struct hps_stream;

hps_status hps_stream_new(const struct hps_lookup *lookup, const struct hps_encode_explain *explain,
                          struct hps_block *rows, struct hps_block_pool *pool,
                          struct hps_arena *arena, struct hps_stream **out_stream) HPS_MUST_CHECK;
bool hps_stream_done(const struct hps_stream *stream);
/* Encodes the next message; hps_stream_done must be false. The slices are valid until the next
 * call.
 * error   NO_MEMORY */
hps_status hps_stream_next(struct hps_stream *stream, struct hps_encoded *out_encoded)
    HPS_MUST_CHECK;

#endif
