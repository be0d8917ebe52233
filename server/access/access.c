/* SPDX-License-Identifier: Apache-2.0
 *
 * The current rules, and the guard that authorizes calls of the gRPC server. Each connection has a
 * `struct visitor` on the thread of its loop. It caches the grant of the connection itself, and the
 * grant of the last token. See server/access/access.h.
 */
#include "server/access/access.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "net/tls.h"
#include "server/access/rules.h"

enum { TOKEN_BYTES_KEPT = 512 };

struct hps_access {
    struct hps_access_options options;
    struct hps_lock lock; /* protects `rules` */
    struct hps_access_rules *rules;
    /* Changes with the rules, so that visitors detect outdated rules. */
    _Atomic uint64_t generation;
    int64_t expiry_unix_s; /* when the next token expires; main thread only */
};

struct visitor {
    struct hps_access *access;
    struct access_identity identity;
    char peer[ACCESS_PEER_BYTES];
    bool expelled; /* its certificate was revoked during the handshake */
    uint64_t generation;
    struct hps_access_rules *rules;
    bool asks_token;                /* whether these rules have tokens for it */
    struct hps_access_grant *own;   /* its grant without a token */
    struct hps_access_grant *token; /* its grant with the token below; NULL: none */
    size_t token_size;
    char token_text[TOKEN_BYTES_KEPT];
};

static int64_t now_unix_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)now.tv_sec;
}

/* ---- rules ----------------------------------------------------------------------------------- */

struct hps_access *hps_access_new(const struct hps_access_options *options,
                                  struct hps_access_rules *rules)
{
    struct hps_access *access = hps_calloc(1, sizeof(*access));
    if (access == NULL) {
        hps_access_rules_unref(rules);
        return NULL;
    }
    access->options = *options;
    hps_lock_init(&access->lock, HPS_LOCK_ACCESS);
    access->rules = rules;
    access->expiry_unix_s = access_rules_next_expiry(rules, now_unix_s());
    atomic_init(&access->generation, 1);
    return access;
}

void hps_access_free(struct hps_access *access)
{
    if (access != NULL) {
        hps_access_rules_unref(access->rules);
        hps_lock_fini(&access->lock);
        hps_free(access);
    }
}

void hps_access_rules_set(struct hps_access *access, struct hps_access_rules *rules)
{
    hps_lock_acquire(&access->lock);
    struct hps_access_rules *old = access->rules;
    access->rules = rules;
    atomic_fetch_add(&access->generation, 1);
    hps_lock_release(&access->lock);
    hps_access_rules_unref(old);
    access->expiry_unix_s = access_rules_next_expiry(rules, now_unix_s());
}

bool hps_access_take_expired(struct hps_access *access)
{
    int64_t now = now_unix_s();
    if (now < access->expiry_unix_s) {
        return false;
    }
    access->expiry_unix_s = access_rules_next_expiry(access->rules, now);
    return true;
}

/* owner: the caller, hps_access_rules_unref */
static struct hps_access_rules *current_rules(struct hps_access *access, uint64_t *out_generation)
{
    hps_lock_acquire(&access->lock);
    struct hps_access_rules *rules = access->rules;
    atomic_fetch_add_explicit(&rules->refs, 1, memory_order_relaxed);
    *out_generation = atomic_load(&access->generation);
    hps_lock_release(&access->lock);
    return rules;
}

bool hps_access_has_file(struct hps_access *access)
{
    hps_lock_acquire(&access->lock);
    bool has_file = access->rules->has_file;
    hps_lock_release(&access->lock);
    return has_file;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void visitor_free(void *ctx)
{
    struct visitor *visitor = ctx;
    if (visitor != NULL) {
        hps_access_grant_unref(visitor->own);
        hps_access_grant_unref(visitor->token);
        hps_access_rules_unref(visitor->rules);
        access_identity_fini(&visitor->identity);
        hps_free(visitor);
    }
}

/* Applies the current rules. NO_MEMORY: the visitor keeps the old ones. */
static hps_status visitor_renew(struct visitor *visitor)
{
    struct hps_access *access = visitor->access;
    struct hps_access_grant *own = NULL;
    uint64_t generation = 0;
    struct hps_access_rules *rules = current_rules(access, &generation);
    hps_status status = access_grant_new(access, access->options.limits, rules, &visitor->identity,
                                         ACCESS_TOKEN_NONE, 0, NULL, &own);
    if (status != HPS_OK) {
        hps_access_rules_unref(rules);
        return status;
    }
    hps_access_rules_unref(visitor->rules);
    hps_access_grant_unref(visitor->own);
    hps_access_grant_unref(visitor->token);
    visitor->rules = rules;
    visitor->asks_token = access_rules_ask_token(rules, &visitor->identity);
    visitor->generation = generation;
    visitor->own = own;
    visitor->token = NULL;
    return HPS_OK;
}

static struct visitor *visitor_make(struct hps_access *access, const struct hps_conn *conn,
                                    bool admin)
{
    struct hps_error err;
    struct visitor *visitor = hps_calloc(1, sizeof(*visitor));
    if (visitor == NULL) {
        return NULL;
    }
    visitor->access = access;
    visitor->expelled = hps_conn_recheck(conn, &err) != HPS_OK;
    (void)snprintf(visitor->peer, sizeof(visitor->peer), "%s", hps_conn_peer(conn));
    if (access_identity_init(&visitor->identity, conn, admin) != HPS_OK ||
        visitor_renew(visitor) != HPS_OK) {
        visitor_free(visitor);
        return NULL;
    }
    return visitor;
}

static void *visitor_new(void *ctx, const struct hps_conn *conn, uint32_t listener_mask)
{
    struct hps_access *access = ctx;
    return visitor_make(access, conn, (listener_mask & access->options.admin_mask) != 0);
}

/* Compares in constant time, so that the time reveals nothing about the token. */
static bool same_bytes(const char *a, const char *b, size_t size)
{
    unsigned differ = 0;
    for (size_t i = 0; i < size; i++) {
        differ |= (unsigned)(a[i] ^ b[i]);
    }
    return differ == 0;
}

/* The visitor's grant with the token that has this digest, by the visitor's rules.
 *
 * owner   *out_grant: the caller
 * error   UNAUTHENTICATED, NO_MEMORY
 */
static hps_status token_grant(const struct visitor *visitor, const uint8_t sha256[32],
                              struct hps_access_grant **out_grant, struct hps_error *err)
{
    size_t index = 0;
    enum access_token kind = access_rules_token(visitor->rules, sha256, now_unix_s(), &index);
    if (kind == ACCESS_TOKEN_EXPIRED) {
        return hps_error_set(err, HPS_UNAUTHENTICATED,
                             "authorization: the token \"%s\" has expired; send a newer one",
                             visitor->rules->file.tokens[index].name);
    }
    if (kind == ACCESS_TOKEN_UNKNOWN) {
        return hps_error_set(err, HPS_UNAUTHENTICATED,
                             "authorization: the bearer token is not a valid one");
    }
    hps_status status =
        access_grant_new(visitor->access, visitor->access->options.limits, visitor->rules,
                         &visitor->identity, kind, index, sha256, out_grant);
    return status == HPS_OK ? HPS_OK : hps_error_set(err, status, "no memory for a grant");
}

/* The grant of a call with this authorization header (NULL: none), borrowed from the visitor. */
static hps_status find_grant(struct visitor *visitor, const char *header,
                             struct hps_access_grant **out_grant, struct hps_error *err)
{
    uint8_t sha256[32];
    struct hps_access_grant *grant = NULL;
    *out_grant = visitor->own;
    if (header == NULL || strncasecmp(header, "Bearer ", 7) != 0 || !visitor->asks_token) {
        return HPS_OK;
    }
    const char *token = header + 7;
    size_t size = strlen(token);
    if (visitor->token != NULL && size == visitor->token_size &&
        same_bytes(token, visitor->token_text, size) &&
        (visitor->token->expires_unix_s == INT64_MAX ||
         visitor->token->expires_unix_s > now_unix_s())) {
        *out_grant = visitor->token;
        return HPS_OK;
    }
    hps_status status = hps_tls_sha256(token, size, sha256);
    status = status == HPS_OK ? token_grant(visitor, sha256, &grant, err)
                              : hps_error_set(err, status, "no memory for a digest");
    if (status != HPS_OK) {
        return status;
    }
    hps_access_grant_unref(visitor->token);
    visitor->token = grant;
    visitor->token_size = size < TOKEN_BYTES_KEPT ? size : SIZE_MAX;
    if (size < TOKEN_BYTES_KEPT) {
        memcpy(visitor->token_text, token, size);
    }
    *out_grant = grant;
    return HPS_OK;
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void report(const struct hps_access *access, const char *who, const char *peer, bool admin,
                   const char *method, const char *model, const struct hps_error *error)
{
    const struct hps_access_refusal refusal = {
        .who = who, .peer = peer, .method = method, .model = model, .admin = admin, .error = error};
    if (access->options.on_refusal != NULL) {
        access->options.on_refusal(access->options.ctx, &refusal);
    }
}

/* A client without certificate, token or Unix user is UNAUTHENTICATED, because authentication could
 * help. Other clients lack PERMISSION. */
static hps_status refuse_roles(const struct visitor *visitor, const struct hps_access_grant *grant,
                               uint32_t roles, struct hps_error *err)
{
    char words[64];
    access_roles_print(roles != 0 ? roles : HPS_ROLES_ALL, words, sizeof(words));
    if (!visitor->rules->has_file && !visitor->identity.admin) { /* no authentication can help */
        return hps_error_set(err, HPS_PERMISSION,
                             "without a role file (server.access) nobody has the role: %s on this "
                             "listener; use the admin socket (hpsctl --addr unix:PATH)",
                             words);
    }
    bool anonymous =
        !grant->has_token && !visitor->identity.is_unix && visitor->identity.names == NULL;
    if (anonymous) {
        return hps_error_set(err, HPS_UNAUTHENTICATED,
                             "authorization: a valid bearer token%s is needed, with the role: %s",
                             visitor->rules->has_file ? " or a client certificate" : "", words);
    }
    if (visitor->rules->has_file) {
        return hps_error_set(err, HPS_PERMISSION,
                             "%s has not the role: %s; a rule of server.access can give it",
                             grant->who, words);
    }
    return hps_error_set(err, HPS_PERMISSION,
                         "%s may not use the admin socket; it is for root, the daemon's user and "
                         "members of the socket's group",
                         grant->who);
}

/* ---- guard ----------------------------------------------------------------------------------- */

static bool is_current(const struct visitor *visitor)
{
    return visitor->generation ==
           atomic_load_explicit(&visitor->access->generation, memory_order_relaxed);
}

/* Authorizes a call. The visitor must have the current rules. OK: *out_grant is borrowed from the
 * visitor. An error is reported to on_refusal. */
static hps_status judge(struct visitor *visitor, const char *method, const char *header,
                        uint32_t roles, struct hps_access_grant **out_grant, struct hps_error *err)
{
    struct hps_access_grant *grant = visitor->own;
    hps_status status = HPS_OK;
    if (visitor->expelled) {
        status = hps_error_set(err, HPS_UNAUTHENTICATED,
                               "TLS: the client certificate is not valid any more");
    } else {
        status = find_grant(visitor, header, &grant, err);
    }
    if (status == HPS_OK && (grant->roles & (roles != 0 ? roles : HPS_ROLES_ALL)) == 0) {
        status = refuse_roles(visitor, grant, roles, err);
    }
    if (status != HPS_OK) {
        report(visitor->access, grant->who, visitor->peer, visitor->identity.admin, method, "",
               err);
        return status;
    }
    *out_grant = grant;
    return HPS_OK;
}

static hps_status enter(void *ctx, struct hps_grpc_call *call, uint32_t roles,
                        const void **out_grant, struct hps_error *err)
{
    struct visitor *visitor = ctx;
    struct hps_access_grant *grant = NULL;
    if (!is_current(visitor) && visitor_renew(visitor) != HPS_OK) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a grant");
    }
    const char *header =
        visitor->asks_token ? hps_grpc_call_header(call, "authorization", NULL) : NULL;
    hps_status status = judge(visitor, hps_grpc_call_path(call), header, roles, &grant, err);
    if (status == HPS_OK) {
        status = hps_charge_identify(hps_grpc_call_charge(call), grant->account, grant->reply_bytes,
                                     err);
    }
    if (status == HPS_OK) {
        *out_grant = access_grant_ref(grant);
    }
    return status;
}

static hps_status visitor_again(void *ctx, const struct hps_conn *conn, struct hps_error *err)
{
    struct visitor *visitor = ctx;
    hps_status status = hps_conn_recheck(conn, err);
    if (status != HPS_OK) {
        report(visitor->access, visitor->own->who, visitor->peer, visitor->identity.admin, "", "",
               err);
        return status;
    }
    return visitor_renew(visitor) == HPS_OK
               ? HPS_OK
               : hps_error_set(err, HPS_NO_MEMORY, "no memory for a grant");
}

static hps_status again(void *ctx, struct hps_grpc_call *call, const void *old, uint32_t roles,
                        struct hps_error *err)
{
    struct visitor *visitor = ctx;
    const struct hps_access_grant *before = old;
    struct hps_access_grant *after = NULL;
    hps_status status = HPS_OK;
    if (before->has_token) {
        status = token_grant(visitor, before->token_sha256, &after, err);
    } else {
        after = access_grant_ref(visitor->own);
    }
    if (status == HPS_OK && !access_grant_covers(after, before, roles)) {
        status = refuse_roles(visitor, after, roles, err);
    }
    if (status == HPS_OK) {
        access_grant_limit((struct hps_access_grant *)(uintptr_t)before, after);
        hps_charge_quota_set(hps_grpc_call_charge(call), after->reply_bytes);
    }
    hps_access_grant_unref(after);
    if (status != HPS_OK) {
        report(visitor->access, before->who, visitor->peer, visitor->identity.admin,
               hps_grpc_call_path(call), "", err);
    }
    return status;
}

static void release(const void *grant)
{
    hps_access_grant_unref(grant);
}

struct hps_grpc_guard hps_access_guard(struct hps_access *access)
{
    return (struct hps_grpc_guard){.ctx = access,
                                   .visitor_new = visitor_new,
                                   .visitor_free = visitor_free,
                                   .visitor_again = visitor_again,
                                   .enter = enter,
                                   .again = again,
                                   .release = release};
}

static hps_status refuse_whole(const struct hps_access_grant *grant, enum hps_access_role role,
                               struct hps_error *err)
{
    char words[64];
    access_roles_print((uint32_t)role, words, sizeof(words));
    return hps_error_set(err, HPS_PERMISSION,
                         "%s has not the role: %s, for the server as a whole, only for some "
                         "models; a rule of server.access without \"models\" can give it",
                         grant->who, words);
}

hps_status hps_access_ask(struct hps_access *access, const struct hps_conn *conn,
                          const char *method, const char *authorization, enum hps_access_role role,
                          struct hps_error *err)
{
    struct hps_access_grant *grant = NULL;
    struct visitor *visitor = visitor_make(access, conn, false);
    if (visitor == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a grant");
    }
    hps_status status = judge(visitor, method, authorization, (uint32_t)role, &grant, err);
    if (status == HPS_OK && !access_grant_allows(grant, (uint32_t)role, NULL, 0)) {
        status = refuse_whole(grant, role, err);
        report(access, grant->who, visitor->peer, false, method, "", err);
    }
    visitor_free(visitor);
    return status;
}

/* ---- grants ---------------------------------------------------------------------------------- */

const struct hps_access_grant *hps_access_grant_of(const struct hps_grpc_call *call)
{
    return hps_grpc_call_grant(call);
}

hps_status hps_access_check(struct hps_grpc_call *call, enum hps_access_role role,
                            const char *model, size_t model_size, struct hps_error *err)
{
    const struct hps_access_grant *grant = hps_grpc_call_grant(call);
    char words[64];
    char name[128];
    if (grant == NULL || access_grant_allows(grant, (uint32_t)role, model, model_size)) {
        return HPS_OK;
    }
    (void)snprintf(name, sizeof(name), "%.*s",
                   (int)(model_size < sizeof(name) ? model_size : sizeof(name) - 1),
                   model != NULL ? model : "");
    access_roles_print((uint32_t)role, words, sizeof(words));
    hps_status status =
        model != NULL
            ? hps_error_set(err, HPS_PERMISSION,
                            "model: %s has not the role: %s, for '%s'; a rule of server.access can "
                            "give it",
                            grant->who, words, name)
            : refuse_whole(grant, role, err);
    report(grant->access, grant->who, hps_grpc_call_peer(call), grant->admin,
           hps_grpc_call_path(call), name, err);
    return status;
}

bool hps_access_sees(const struct hps_grpc_call *call, enum hps_access_role role, const char *model)
{
    const struct hps_access_grant *grant = hps_grpc_call_grant(call);
    return grant == NULL || access_grant_allows(grant, (uint32_t)role, model, strlen(model));
}

const char *hps_access_grant_who(const struct hps_access_grant *grant)
{
    return grant != NULL ? grant->who : "";
}

struct hps_account *hps_access_grant_account(const struct hps_access_grant *grant)
{
    return grant->account;
}

/* The highest limit of the roles; 0: no limit. */
static uint32_t requests_per_s_of(const struct hps_access_grant *grant, uint32_t roles)
{
    uint32_t most = 0;
    for (unsigned role = 0; role < ACCESS_ROLES; role++) {
        uint32_t limit = grant->requests_per_s[role];
        if ((roles & 1U << role) != 0 && limit == 0) {
            return 0;
        }
        most = (roles & 1U << role) != 0 && limit > most ? limit : most;
    }
    return most;
}

hps_status hps_access_take_call(const struct hps_grpc_call *call, uint32_t roles,
                                uint64_t *out_retry_us, struct hps_error *err)
{
    const struct hps_access_grant *grant = hps_access_grant_of(call);
    roles = roles != 0 ? roles : HPS_ROLES_ALL;
    uint32_t requests_per_s = grant != NULL ? requests_per_s_of(grant, grant->roles & roles) : 0;
    if (requests_per_s == 0 ||
        hps_account_take(grant->account, requests_per_s, hps_clock_us(), out_retry_us)) {
        return HPS_OK;
    }
    return hps_error_set(err, HPS_EXHAUSTED,
                         "call rejected: %s may send %" PRIu32
                         " a second (requests_per_s of its rule); retry in %" PRIu64 " ms",
                         hps_access_grant_who(grant), requests_per_s, *out_retry_us / 1000 + 1);
}
