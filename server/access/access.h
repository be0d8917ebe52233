/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may do what. A connection has an identity: the names in its client certificate, or its Unix
 * user and groups; a call may add a bearer token. The rules that match any of these give *roles*,
 * each for all models or for some, and the union of them is the *grant* of a call: immutable, so
 * that any thread may ask it while the call runs.
 *
 *     connection ─▶ visitor (its identity, its grant, its last token's grant)
 *                     │ each call: hps_grpc_guard
 *                     ▼
 *                   grant ─▶ has the method's role?  (before a byte of the message is read)
 *                         ─▶ has it for this model?  (hps_access_check, by the service)
 *
 * The rules are those of the role file (config/access.h), and these:
 *   - without a role file the public listeners answer look-ups of everybody, and tell what can be
 *     looked up;
 *   - on a Unix admin socket root and the daemon's own user may do everything, and without a role
 *     file so may members of the socket's group;
 *   - who sends the token of `admin_token_file` may do everything.
 */
#ifndef HPS_SERVER_ACCESS_ACCESS_H
#define HPS_SERVER_ACCESS_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "config/access.h"
#include "net/grpc.h"

struct hps_access;       /* one of the daemon */
struct hps_access_rules; /* those that a configuration makes; immutable */
struct hps_access_grant;

/* ---- rules ----------------------------------------------------------------------------------- */

/* Where rules come from; borrowed for the call. */
struct hps_access_source {
    const char *file;             /* the role file; "": none */
    const char *admin_token_file; /* "": none */
};

/* Read them. Main thread.
 *
 * error   those of hps_access_file_read, and of the token's file; with the option's name
 */
hps_status hps_access_rules_read(const struct hps_access_source *source,
                                 struct hps_access_rules **out_rules, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_access_rules_unref(struct hps_access_rules *rules); /* any thread; NULL is legal */

/* ---- the daemon's ---------------------------------------------------------------------------- */

/* Somebody was refused. Text is borrowed for the call. */
struct hps_access_refusal {
    const char *who;  /* as hps_access_grant_who */
    const char *peer; /* as hps_conn_peer */
    const char *method;
    const char *model; /* "": not asked for one */
    bool admin;        /* on an admin listener */
    const struct hps_error *error;
};

struct hps_access_options {
    struct hps_limits *limits; /* has the accounts of identities; outlives the access object */
    uint32_t admin_mask;       /* of listeners: bits of those that are for administration */
    /* May be NULL. Any thread. */
    void (*on_refusal)(void *ctx, const struct hps_access_refusal *refusal);
    void *ctx;
};

/* takes `rules`, also on failure. NULL: no memory. */
struct hps_access *hps_access_new(const struct hps_access_options *options,
                                  struct hps_access_rules *rules);
void hps_access_free(struct hps_access *access); /* no visitor and no grant may be left */
/* These hold for calls that begin from now on; hps_grpc_loop_recheck ends those that are under way
 * and lost what they need. Takes `rules`. Main thread. */
void hps_access_rules_set(struct hps_access *access, struct hps_access_rules *rules);
/* Whether a token has expired since this was last asked: then it is time for
 * hps_grpc_loop_recheck. Main thread. */
bool hps_access_take_expired(struct hps_access *access);
/* Whether there is a role file. Any thread. */
bool hps_access_has_file(struct hps_access *access);
/* What the gRPC server asks; valid as long as `access`. */
struct hps_grpc_guard hps_access_guard(struct hps_access *access);

/* ---- grants ---------------------------------------------------------------------------------- */

/* May this call do `role` to `model` (NULL: to all of them, and the server as a whole)? To be asked
 * before it is told whether there is such a model. A call of a server without a guard may do
 * everything. Any thread that has the call.
 *
 * error   PERMISSION names who, role and model; the refusal has been reported
 */
hps_status hps_access_check(struct hps_grpc_call *call, enum hps_access_role role,
                            const char *model, size_t model_size, struct hps_error *err)
    HPS_MUST_CHECK;
/* The same as a question, of which nobody hears: what of a list a call may see. */
bool hps_access_sees(const struct hps_grpc_call *call, enum hps_access_role role,
                     const char *model);

/* The grant of a call, NULL without a guard. Borrowed for as long as the call. */
const struct hps_access_grant *hps_access_grant_of(const struct hps_grpc_call *call);
/* "token:NAME", else "cert:NAME" (the one that a rule knows, else the first), else "user:1000",
 * else "address:10.0.0.7"; "" for NULL. */
const char *hps_access_grant_who(const struct hps_access_grant *grant);
/* What all calls of that identity (of an IPv6 address: of its network of 64 bits) use, against its
 * limits. Borrowed for as long as the grant. */
struct hps_account *hps_access_grant_account(const struct hps_access_grant *grant);
/* Count a call, or a message of a stream, against the quota of its identity. roles: those of the
 * method, of which one is enough; 0: any. The rules that give such a role have limits; the highest
 * one applies. Loop of the connection, like the next function.
 *
 * error   EXHAUSTED: the quota is used up; *out_retry_us is the time until the next call is allowed
 */
hps_status hps_access_take_call(const struct hps_grpc_call *call, uint32_t roles,
                                uint64_t *out_retry_us, struct hps_error *err) HPS_MUST_CHECK;

/* For a server without this guard: may who is at the other end of `conn`, with that authorization
 * header (NULL: none), do `role` to all models, and the server as a whole? Its handshake is over.
 * Thread of the connection.
 *
 * error   UNAUTHENTICATED, PERMISSION: the refusal has been reported; NO_MEMORY
 */
hps_status hps_access_ask(struct hps_access *access, const struct hps_conn *conn,
                          const char *method, const char *authorization, enum hps_access_role role,
                          struct hps_error *err) HPS_MUST_CHECK;
void hps_access_grant_unref(const struct hps_access_grant *grant); /* any thread */

#endif
