/* SPDX-License-Identifier: Apache-2.0
 *
 * The server that fuzz_grpc_server.c and fuzz_http1_server.c call: methods, a guard, and checks
 * that nothing is held after a peer has closed. Each input is one connection to the same server.
 */
#ifndef HPS_TESTS_FUZZ_SERVED_H
#define HPS_TESTS_FUZZ_SERVED_H

#include "net/grpc.h"

enum { SERVED_TURNS_MAX = 64, SERVED_PARKED_MAX = 4 };

struct served {
    struct hps_loop *loop;
    struct hps_grpc_server *server;
    struct hps_grpc_loop *grpc_loop;
    struct hps_block_pool *blocks;
    struct hps_grpc_call *parked[SERVED_PARKED_MAX]; /* referenced; NULL: none */
    int n_connections;
    unsigned n_open; /* calls that a method got, and that have not closed */
    int n_visitors;
    int n_grants;
};
extern struct served served;

/* Once: makes the server, and fakes the clock. True: add methods, then call served_start. */
bool served_make(void);
void served_start(void);
/* The other end of a new connection, non-blocking. */
int served_connect(bool http);
/* Recheck by other rules, which refuse 1: calls; 2: the connection; 0: neither. */
void served_recheck(unsigned rules);
/* Answer a call that is parked, and forget it. */
void served_answer(unsigned i, const void *data, size_t size, int code);
/* Close that end, and check that the server holds nothing of it. */
void served_gone(int fd);

/* For every method. */
void served_saw(struct hps_grpc_call *call);
void served_close(struct hps_grpc_call *call);
/* Methods: echo with metadata; park; charge the connection for as long as the call lasts. */
void served_echo(struct hps_grpc_call *call, const uint8_t *data, size_t size);
void served_park(struct hps_grpc_call *call, const uint8_t *data, size_t size);
void served_packed(struct hps_grpc_call *call, const struct hps_grpc_packed *packed);

#endif
