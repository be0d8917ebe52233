/* SPDX-License-Identifier: Apache-2.0
 *
 * A gRPC server with a few methods, and its clients, on one loop. The test runs each iteration of
 * the loop, so nothing depends on timing. Test thread.
 */
#ifndef HPS_TESTS_LIB_GRPC_RIG_H
#define HPS_TESTS_LIB_GRPC_RIG_H

#include "base/block.h"
#include "base/buf.h"
#include "net/grpc.h"
#include "net/loop.h"
#include "net/places.h"

enum { RIG_CHARGES = 8 };

struct rig {
    struct hps_loop *loop;
    struct hps_grpc_server *server;
    struct hps_limits *accounts;
    struct hps_limits_options memory; /* limits of `accounts` */
    struct hps_grpc_loop *grpc_loop;
    struct hps_block_pool *blocks;
    struct hps_loop_fd listener;
    int listen_fd;
    char address[64];
    struct hps_tls *tls;            /* of connections accepted from now on */
    struct hps_place_table *places; /* likewise: their table of places; NULL: none */
    uint64_t client;                /* likewise: the client that has these places */
    bool refused;                   /* the last connection got no place */
    bool http;                      /* of such connections: they speak HTTP/1.1 */
    bool loopback;                  /* of such connections: their listener is on loopback */
    struct hps_grpc_service service;
    /* recorded by the methods */
    unsigned n_messages;
    unsigned n_half_closes;
    unsigned n_closes;
    unsigned n_drains;
    unsigned n_gone;
    unsigned n_no_starts[HPS_GRPC_NO_STARTS];
    int n_connections;
    unsigned n_ended[17]; /* by gRPC code */
    unsigned n_slow[HPS_GRPC_SLOW_COUNT];
    uint64_t slow_us; /* each of them advances the fake clock by this */
    size_t bytes;
    struct hps_grpc_call *parked;               /* the last call to /t.T/Park, with a reference */
    struct hps_grpc_call *charged[RIG_CHARGES]; /* charged calls to /t.T/Charge, with references */
    unsigned n_charged;
    char header[64]; /* value of x-test of the last call */
    bool drained;
};

/* Methods: Echo · Big (u32 LE bytes of reply from one block, byte i = i * 31 >> 3) · Park (never
 * replies) · Fail (code 9 and a message that needs escapes) · Count (client streaming: u32 LE
 * messages) · Chat (client streaming, 4 KB for each message) · Pour (u32 LE messages of 64 KB, as
 * the queue drains) · Charge (u32 LE bytes, charged to the connection until rig_discharge; never
 * replies) · Meta (returns headers and trailers) · /grpc.health.v1.Health/Check (as Echo, open to
 * all). Routes of HTTP/1.1: POST /echo · POST /small (at most 10 bytes) · GET /big/{} (as Big) ·
 * POST and GET /park · GET /fail/{} (that code, "no \"{}\"") · GET /health/{} (that status) · GET
 * /names/{}/{} ("first|second") · GET /names/stats ("stats") · GET /meta (a header, trailers,
 * pushback of 1,500 ms) · POST /packed ("gzip 12", "zlib 12", "plain 12" for that many bytes) · GET
 * /open (without authorizer) · POST /charge (as Charge) · GET /late (after its deadline). */
void rig_open(struct rig *rig, const struct hps_grpc_limits *limits);
void rig_close(struct rig *rig);
extern const struct hps_grpc_limits rig_limits;

/* From now on, requests of all clients may use at most this many bytes. */
void rig_request_bytes_max(struct rig *rig, uint64_t bytes);
/* The same for replies. */
void rig_reply_bytes_max(struct rig *rig, uint64_t bytes);
/* Bytes of the requests of open calls, without the HPS_CALL_BYTES of each call. */
size_t rig_request_bytes(const struct rig *rig);
/* Release the bytes and the reference of the oldest call in rig->charged. */
void rig_discharge(struct rig *rig);

/* An authorizer that accepts calls with the header "authorization: WORD"; `word` may change. Calls
 * without the header fail with UNAUTHENTICATED, calls with another value with PERMISSION. Checks
 * that /t.T/Echo and /echo require the roles 5. Set it before the first connection; it is used
 * until rig_close. */
struct rig_guard {
    const char *word;
    bool expels; /* whether checks of open connections fail */
    int n_visitors;
    int n_grants;
};
void rig_guard_set(struct rig *rig, struct rig_guard *guard);

/* A non-blocking socket that is connected to the server. */
int rig_raw(struct rig *rig);
struct hps_grpc_channel *rig_channel(struct rig *rig);
void rig_turn(struct rig *rig); /* run one iteration, which waits at most 10 ms */
#define RIG_UNTIL(rig, condition)              \
    do {                                       \
        unsigned rig_turns_ = 0;               \
        while (!(condition)) {                 \
            rig_turn(rig);                     \
            assert_true(++rig_turns_ < 20000); \
        }                                      \
    } while (0)

/* A client call and its result. */
struct reply {
    struct hps_buf data; /* the last message */
    unsigned n_messages;
    unsigned n_done;
    int code;
    char text[256];
};
extern const struct hps_grpc_client_events reply_events;
void reply_init(struct reply *reply);
void reply_fini(struct reply *reply);
/* rig_start starts a call without a deadline; rig_call also waits for its end and
 * returns its code. */
void rig_start(struct hps_grpc_channel *channel, const char *path, const void *request, size_t size,
               struct reply *reply);
int rig_call(struct rig *rig, struct hps_grpc_channel *channel, const char *path,
             const void *request, size_t size, struct reply *reply);

uint8_t rig_byte(size_t i); /* byte i of a Big reply */

/* ---- hand-made frames ------------------------------------------------------------------------ */

struct wire {
    struct rig *rig;
    int fd;
    bool closed; /* the server closed it */
    struct hps_buf in;
};
/* Connect by a Unix socket or by TCP, and send preface and SETTINGS. */
void wire_open(struct wire *wire, struct rig *rig);
void wire_open_tcp(struct wire *wire, struct rig *rig);
void wire_close(struct wire *wire); /* idempotent; fd -1: not open */
/* Send, and run the loop while the socket is full. False: the server has closed the connection. */
bool wire_send(struct wire *wire, const void *data, size_t size);
bool wire_frame(struct wire *wire, uint8_t type, uint8_t flags, uint32_t stream,
                const void *payload, size_t size);
/* Send HEADERS of a call, without compression; `extra`: more name/value pairs, ended by NULL. */
bool wire_request(struct wire *wire, uint32_t stream, const char *path, bool end,
                  const char *const *extra);
/* As wire_request, then send one message of at most 100 bytes with the end of the stream. */
void wire_call(struct wire *wire, uint32_t stream, const char *path, const char *const *extra,
               const void *message, size_t size);
void wire_pump(struct wire *wire); /* run one iteration, then receive */
/* Whether a frame of this type (and stream, unless 0) was received; sets its payload if so. */
bool wire_find(const struct wire *wire, uint8_t type, uint32_t stream, const uint8_t **out_payload,
               size_t *out_size);
/* Wait for the server's SETTINGS and acknowledge them: its windows apply from then on. */
void wire_take_settings(struct wire *wire);
#define WIRE_UNTIL(wire, condition)             \
    do {                                        \
        unsigned wire_turns_ = 0;               \
        while (!(condition)) {                  \
            wire_pump(wire);                    \
            assert_true(++wire_turns_ < 20000); \
        }                                       \
    } while (0)

#endif
