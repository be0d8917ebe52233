/* SPDX-License-Identifier: Apache-2.0
 *
 * Authorization. A connection has an identity: the names in its client certificate, or its Unix
 * user and groups. A call may also have a bearer token. The rules that match them give *roles*,
 * each for some models or for all. The *grant* of a call is the union of these roles. Any thread
 * may use it while the call runs; only its limits change.
 *
 *     connection ─▶ visitor (its identity, its grant, the grant of its last token)
 *                     │ each call: hps_grpc_guard
 *                     ▼
 *                   grant ─▶ has the method's role?  (before a byte of the message is read)
 *                         ─▶ has it for this model?  (hps_access_check, called by the service)
 *
 * The role file (config/access.h) has rules. These rules are always there:
 *
 *   - Without a role file, every client of a public listener has the roles `lookup` and `read`.
 *   - On a Unix admin socket, root and the daemon's user have all roles. Without a role file,
 *     members of the socket's group have them too.
 *   - A call with the token of `admin_token_file` has all roles.
 */
#ifndef HPS_SERVER_ACCESS_ACCESS_H
#define HPS_SERVER_ACCESS_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "config/access.h"
#include "net/grpc.h"

struct hps_access;       /* the daemon has one */
struct hps_access_rules; /* rules that were read from files; immutable */
struct hps_access_grant;

/* ---- rules ----------------------------------------------------------------------------------- */

/* The files with rules. Borrowed for the call. */
struct hps_access_source {
    const char *file;             /* the role file; "": no file */
    const char *admin_token_file; /* "": no file */
};

/* Reads the rules. Main thread.
 *
 * error   as hps_access_file_read, or an error of the token file; the text names the option
 */
hps_status hps_access_rules_read(const struct hps_access_source *source,
                                 struct hps_access_rules **out_rules, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_access_rules_unref(struct hps_access_rules *rules); /* any thread; may be NULL */

/* ---- the daemon's rules ---------------------------------------------------------------------- */

/* A refused call or connection. The texts are borrowed for the callback. */
struct hps_access_refusal {
    const char *who;  /* as hps_access_grant_who */
    const char *peer; /* as hps_conn_peer */
    const char *method;
    const char *model; /* "": the refusal is not about a model */
    bool admin;        /* it came by an admin listener */
    const struct hps_error *error;
};

struct hps_access_options {
    struct hps_limits *limits; /* for the accounts of identities; must outlive the access object */
    uint32_t admin_mask;       /* the admin listeners, as in hps_grpc_loop_adopt */
    /* May be NULL. Any thread. */
    void (*on_refusal)(void *ctx, const struct hps_access_refusal *refusal);
    void *ctx;
};

/* Takes over `rules`, also on failure. NULL: no memory. */
struct hps_access *hps_access_new(const struct hps_access_options *options,
                                  struct hps_access_rules *rules);
void hps_access_free(struct hps_access *access); /* all visitors and grants must be freed */
/* Replaces the rules for later calls. The caller then calls hps_grpc_loop_recheck, which ends calls
 * that the new rules do not allow. Takes over `rules`. Main thread. */
void hps_access_rules_set(struct hps_access *access, struct hps_access_rules *rules);
/* Whether a token has expired since the last call of this function. The caller then calls
 * hps_grpc_loop_recheck. Main thread. */
bool hps_access_take_expired(struct hps_access *access);
/* Whether there is a role file. Any thread. */
bool hps_access_has_file(struct hps_access *access);
/* The guard for hps_grpc_server_guard_set. `access` must outlive the server. */
struct hps_grpc_guard hps_access_guard(struct hps_access *access);

/* ---- grants ---------------------------------------------------------------------------------- */

/* Checks whether a call may use `role` for `model`. NULL: for all models, and for the server
 * itself. Services call it before they look for the model, so that a refusal does not reveal
 * whether the model exists. Calls without a grant may do everything. Any thread that has a
 * reference to the call.
 *
 * error   PERMISSION names the identity, the role and the model; it was reported to on_refusal
 */
hps_status hps_access_check(struct hps_grpc_call *call, enum hps_access_role role,
                            const char *model, size_t model_size, struct hps_error *err)
    HPS_MUST_CHECK;
/* Like hps_access_check, without a report: for filtering lists of models. */
bool hps_access_sees(const struct hps_grpc_call *call, enum hps_access_role role,
                     const char *model);

/* The grant of a call, borrowed for the life of the call. NULL: the server has no guard, or the
 * method is open to all clients. */
const struct hps_access_grant *hps_access_grant_of(const struct hps_grpc_call *call);
/* The identity: "token:NAME", else "cert:NAME" (a name that a rule has, else the first one), else
 * "user:1000", else "address:10.0.0.7". "" for NULL. */
const char *hps_access_grant_who(const struct hps_access_grant *grant);
/* The account of all calls of the identity (of an IPv6 address: of its /64 network). Borrowed for
 * the life of the grant. */
struct hps_account *hps_access_grant_account(const struct hps_access_grant *grant);
/* Counts a call, or a message of a stream, for requests_per_s. roles: the method's roles, one of
 * them is enough; 0: any role. The highest limit of the grant's rules for these roles applies.
 * Thread of the connection.
 *
 * error   EXHAUSTED: the limit is reached; *out_retry_us is the time until the next call is allowed
 */
hps_status hps_access_take_call(const struct hps_grpc_call *call, uint32_t roles,
                                uint64_t *out_retry_us, struct hps_error *err) HPS_MUST_CHECK;

/* For servers without this guard: checks whether the client of `conn` may use `role` for all models
 * and for the server itself. authorization: its header; NULL: none. The handshake must be finished.
 * Thread of the connection.
 *
 * error   UNAUTHENTICATED, PERMISSION: reported to on_refusal; NO_MEMORY
 */
hps_status hps_access_ask(struct hps_access *access, const struct hps_conn *conn,
                          const char *method, const char *authorization, enum hps_access_role role,
                          struct hps_error *err) HPS_MUST_CHECK;
void hps_access_grant_unref(const struct hps_access_grant *grant); /* any thread */

#endif
