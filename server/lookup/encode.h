/* SPDX-License-Identifier: Apache-2.0
 *
 * LookupResponse as slices: heads are written into one small block, rows are sent from where the
 * look-up wrote them. Used by one thread at a time.
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

/* Explain of an answer; n_stages 0: none is sent. */
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

/* One slice more, if it is not empty, for which there must be room.
 * owner   takes a reference of its own */
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

/* Bytes of the whole answer as one message; an upper bound before the look-up has run. */
uint64_t hps_encode_size_max(const struct hps_lookup *lookup);

/* The whole answer. `rows` is the block that lookup->rows lies in. The caller sends the slices
 * (which takes their references) or gives them back with hps_encoded_release.
 *
 * error   NO_MEMORY, EXHAUSTED (arena)
 */
hps_status hps_encode_lookup(const struct hps_lookup *lookup,
                             const struct hps_encode_explain *explain, struct hps_block *rows,
                             struct hps_block_pool *pool, struct hps_arena *arena,
                             struct hps_encoded *out_encoded) HPS_MUST_CHECK;
void hps_encoded_release(struct hps_encoded *encoded);

/* The same answer as messages of at most HPS_STREAM_MESSAGE_BYTES_MAX (one row, if with the status
 * of its keys it is larger): consecutive rows of one part, in query order, or whole rows of the
 * matrix; an answer without queries is one empty message. `lookup`, `rows`, `pool` and what
 * `explain` points to are borrowed for the stream's life, the version only for hps_stream_new. */
struct hps_stream;

hps_status hps_stream_new(const struct hps_lookup *lookup, const struct hps_encode_explain *explain,
                          struct hps_block *rows, struct hps_block_pool *pool,
                          struct hps_arena *arena, struct hps_stream **out_stream) HPS_MUST_CHECK;
bool hps_stream_done(const struct hps_stream *stream);
/* The next message; there must be one. The slices are valid until the next call.
 * error   NO_MEMORY */
hps_status hps_stream_next(struct hps_stream *stream, struct hps_encoded *out_encoded)
    HPS_MUST_CHECK;

#endif
