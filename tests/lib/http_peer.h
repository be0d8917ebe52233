/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP/1.1 client that sends bytes chosen by the test to the server of tests/lib/grpc_rig.h, and
 * runs the server's loop. Test thread.
 */
#ifndef HPS_TESTS_LIB_HTTP_PEER_H
#define HPS_TESTS_LIB_HTTP_PEER_H

#include "base/buf.h"
#include "tests/lib/grpc_rig.h"

struct peer {
    struct rig *rig;
    int fd;
    struct hps_buf in; /* received bytes that are not parsed yet */
    bool closed;       /* the server has ended its side, or reset the connection */
};

/* Connect by TCP. From now on, connections of the rig speak HTTP/1.1. */
void peer_open(struct peer *peer, struct rig *rig);
void peer_open_unix(struct peer *peer, struct rig *rig); /* the same with a socket pair */
void peer_close(struct peer *peer);
void peer_read(struct peer *peer); /* receive without waiting */
/* False: the server accepts no more bytes. */
bool peer_write(struct peer *peer, const void *data, size_t size);
void peer_say(struct peer *peer, const char *text);
void peer_say_in_bytes(struct peer *peer, const char *text); /* one byte per write */

#define PEER_UNTIL(peer, condition)             \
    do {                                        \
        unsigned peer_turns_ = 0;               \
        while (!(condition)) {                  \
            rig_turn((peer)->rig);              \
            peer_read(peer);                    \
            assert_true(++peer_turns_ < 20000); \
        }                                       \
    } while (0)

struct answer {
    unsigned status;
    char head[4096];
    char *body; /* NUL-terminated; free it */
    size_t size;
};

/* Wait for the next reply. `with_body`: false for replies to HEAD. */
void peer_answer(struct peer *peer, bool with_body, struct answer *out_answer);
/* The next reply must have this status and this body (NULL: any). */
void expect_answer(struct peer *peer, unsigned status, const char *body);
/* The next reply must have this status, and contain `part` in its head. */
void expect_head(struct peer *peer, unsigned status, const char *part);
/* The server must close the connection without sending more bytes. */
void expect_end(struct peer *peer);

#define GET(path)        "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST(path, n, b) "POST " path " HTTP/1.1\r\nHost: a\r\nContent-Length: " n "\r\n\r\n" b
#define CHUNKED(path, b) "POST " path " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" b

#endif
