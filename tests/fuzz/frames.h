/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/2 frames of a hostile client or server, collected in a buffer. Most frames keep the session
 * alive. The script decides about their order, and makes some of them malformed.
 */
#ifndef HPS_TESTS_FUZZ_FRAMES_H
#define HPS_TESTS_FUZZ_FRAMES_H

#include <stdbool.h>

#include "base/buf.h"
#include "tests/fuzz/script.h"

enum { FRAMES_KINDS = 12, FRAMES_BYTES_MAX = 1 << 20 };

struct frames {
    struct hps_buf out; /* not yet sent */
    bool server;        /* the frames are those of a server */
    uint32_t next_id;   /* of the next stream */
    const char *const *paths;
    unsigned n_paths;
};

void frames_init(struct frames *frames, bool server, const char *const *paths, unsigned n_paths);
void frames_fini(struct frames *frames);
/* The client's preface, and SETTINGS of a client or server. */
void frames_begin(struct frames *frames);
/* Adds one or more frames of a kind, which is below FRAMES_KINDS. If the buffer is full, the rest
 * is dropped. */
void frames_put(struct frames *frames, unsigned kind, struct script *script);

#endif
