/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of HTTP/2 as a hostile peer of either role makes them: mostly such that the session goes
 * on, in any order and with lies where the script says so. They are gathered in a buffer.
 */
#ifndef HPS_TESTS_FUZZ_FRAMES_H
#define HPS_TESTS_FUZZ_FRAMES_H

#include <stdbool.h>

#include "base/buf.h"
#include "tests/fuzz/script.h"

enum { FRAMES_KINDS = 12, FRAMES_BYTES_MAX = 1 << 20 };

struct frames {
    struct hps_buf out; /* not sent yet */
    bool server;        /* answers, rather than asks */
    uint32_t next_id;   /* of the stream that is opened next */
    const char *const *paths;
    unsigned n_paths;
};

void frames_init(struct frames *frames, bool server, const char *const *paths, unsigned n_paths);
void frames_fini(struct frames *frames);
/* The client's preface, and SETTINGS of either. */
void frames_begin(struct frames *frames);
/* One frame of a kind, below FRAMES_KINDS, or several of them. What has no room is left out. */
void frames_put(struct frames *frames, unsigned kind, struct script *script);

#endif
