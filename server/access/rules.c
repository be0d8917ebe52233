/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules, and the grants that they give to an identity. See server/access/access.h.
 */
#include "server/access/rules.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/heap.h"
#include "net/addr.h"

/* ---- rules ----------------------------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
    return memcmp(((const struct hps_access_token *)a)->sha256,
                  ((const struct hps_access_token *)b)->sha256, 32);
}

hps_status hps_access_rules_read(const struct hps_access_source *source,
                                 struct hps_access_rules **out_rules, struct hps_error *err)
{
    struct hps_access_rules *rules = hps_calloc(1, sizeof(*rules));
    if (rules == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "server.access: no memory");
    }
    atomic_init(&rules->refs, 1);
    hps_status status = HPS_OK;
    if (source->admin_token_file[0] != '\0') {
        rules->has_admin_token = true;
        status = access_token_file_read(source->admin_token_file, rules->admin_token, err);
    }
    if (status == HPS_OK && source->file[0] != '\0') {
        rules->has_file = true;
        status = hps_access_file_read(source->file, &rules->file, err);
        if (status != HPS_OK) {
            status = hps_error_prefix(err, status, "server.access");
        }
    }
    if (status != HPS_OK) {
        hps_access_rules_unref(rules);
        return status;
    }
    if (rules->file.n_tokens > 0) {
        qsort(rules->file.tokens, rules->file.n_tokens, sizeof(*rules->file.tokens), by_digest);
    }
    *out_rules = rules;
    return HPS_OK;
}

static struct hps_access_rules *rules_ref(struct hps_access_rules *rules)
{
    unsigned refs = atomic_fetch_add_explicit(&rules->refs, 1, memory_order_relaxed);
    HPS_ASSERT(refs > 0);
    return rules;
}

void hps_access_rules_unref(struct hps_access_rules *rules)
{
    if (rules != NULL && atomic_fetch_sub_explicit(&rules->refs, 1, memory_order_acq_rel) == 1) {
        hps_access_file_fini(&rules->file);
        hps_free(rules);
    }
}

enum access_token access_rules_token(const struct hps_access_rules *rules, const uint8_t sha256[32],
                                     int64_t now_unix_s, size_t *out_index)
{
    struct hps_access_token key = {0};
    memcpy(key.sha256, sha256, sizeof(key.sha256));
    const struct hps_access_token *found =
        rules->file.n_tokens > 0
            ? bsearch(&key, rules->file.tokens, rules->file.n_tokens, sizeof(key), by_digest)
            : NULL;
    if (found != NULL && found->expires_unix_s > now_unix_s) {
        *out_index = (size_t)(found - rules->file.tokens);
        return ACCESS_TOKEN_FILE;
    }
    if (rules->has_admin_token && memcmp(rules->admin_token, sha256, 32) == 0) {
        return ACCESS_TOKEN_ADMIN;
    }
    return found != NULL ? ACCESS_TOKEN_EXPIRED : ACCESS_TOKEN_UNKNOWN;
}

int64_t access_rules_next_expiry(const struct hps_access_rules *rules, int64_t now_unix_s)
{
    int64_t next = INT64_MAX;
    for (size_t i = 0; i < rules->file.n_tokens; i++) {
        int64_t at = rules->file.tokens[i].expires_unix_s;
        if (at > now_unix_s && at < next) {
            next = at;
        }
    }
    return next;
}

bool access_rules_ask_token(const struct hps_access_rules *rules,
                            const struct access_identity *identity)
{
    if (rules->has_file) {
        return rules->file.n_tokens > 0 || rules->has_admin_token;
    }
    return identity->admin && rules->has_admin_token;
}

/* ---- identities ------------------------------------------------------------------------------ */

static hps_status copy_names(struct access_identity *identity, const struct hps_conn *conn)
{
    struct hps_buf names;
    hps_status status = HPS_OK;
    hps_buf_init(&names, 64 * 1024);
    for (unsigned i = 0; status == HPS_OK && hps_conn_certificate_name(conn, i) != NULL; i++) {
        const char *name = hps_conn_certificate_name(conn, i);
        status = hps_buf_append(&names, name, strlen(name) + 1);
    }
    if (status == HPS_OK && names.size > 0) {
        status = hps_buf_append(&names, "", 1);
        identity->names = status == HPS_OK ? hps_alloc(names.size) : NULL;
        status = identity->names != NULL ? HPS_OK : HPS_NO_MEMORY;
    }
    if (identity->names != NULL) {
        memcpy(identity->names, names.data, names.size);
    }
    hps_buf_fini(&names);
    return status;
}

hps_status access_identity_init(struct access_identity *identity, const struct hps_conn *conn,
                                bool admin)
{
    uid_t user = 0;
    gid_t group = 0;
    *identity = (struct access_identity){.admin = admin};
    if (!hps_conn_peer_uid(conn, &user)) {
        (void)hps_addr_host(hps_conn_peer(conn), identity->address, sizeof(identity->address));
        return copy_names(identity, conn);
    }
    identity->is_unix = true;
    identity->user = user;
    hps_status status = hps_conn_peer_groups(conn, &identity->groups, &identity->n_groups);
    if (status == HPS_NO_MEMORY) {
        return status; /* other errors: the kernel does not report groups; n_groups stays 0 */
    }
    bool has_group = hps_conn_socket_group(conn, &group);
    for (size_t i = 0; has_group && i < identity->n_groups; i++) {
        identity->in_socket_group |= identity->groups[i] == group;
    }
    return HPS_OK;
}

void access_identity_fini(struct access_identity *identity)
{
    hps_free(identity->groups);
    hps_free(identity->names);
}

/* ---- matching -------------------------------------------------------------------------------- */

/* Returns the certificate's name that equals `wanted`, or NULL. */
static const char *find_name(const struct access_identity *identity, const char *wanted)
{
    const char *name = identity->names;
    while (name != NULL && name[0] != '\0') {
        if (strcmp(name, wanted) == 0) {
            return name;
        }
        name += strlen(name) + 1;
    }
    return NULL;
}

static bool is_in_group(const struct access_identity *identity, uint32_t group)
{
    for (size_t i = 0; i < identity->n_groups; i++) {
        if (identity->groups[i] == group) {
            return true;
        }
    }
    return false;
}

/* Whether a rule matches the identity. token: the name of the call's token; NULL: no token.
 * *out_certificate is set, unless it is set, if a name of the certificate matches. */
static bool matches(const struct hps_access_rule *rule, const struct access_identity *identity,
                    const char *token, const char **out_certificate)
{
    bool found = false;
    for (size_t i = 0; i < rule->n_who; i++) {
        const struct hps_access_name *who = &rule->who[i];
        const char *name = NULL;
        switch (who->kind) {
        case HPS_ACCESS_ANY:
            found = true;
            break;
        case HPS_ACCESS_CERTIFICATE:
            name = find_name(identity, who->name);
            found |= name != NULL;
            if (name != NULL && *out_certificate == NULL) {
                *out_certificate = name;
            }
            break;
        case HPS_ACCESS_USER:
            found |= identity->is_unix && identity->user == who->id;
            break;
        case HPS_ACCESS_GROUP:
            found |= is_in_group(identity, who->id);
            break;
        case HPS_ACCESS_TOKEN:
            found |= token != NULL && strcmp(token, who->name) == 0;
            break;
        }
    }
    return found;
}

/* Roles that do not depend on the role file. */
static uint32_t own_roles(const struct hps_access_rules *rules,
                          const struct access_identity *identity, enum access_token kind)
{
    bool owner = identity->is_unix && (identity->user == 0 || identity->user == geteuid());
    if (kind == ACCESS_TOKEN_ADMIN || (identity->admin && owner)) {
        return HPS_ROLES_ALL;
    }
    if (rules->has_file) {
        return 0;
    }
    if (!identity->admin) {
        return HPS_ROLE_LOOKUP | HPS_ROLE_READ;
    }
    return identity->in_socket_group ? HPS_ROLES_ALL : 0;
}

/* ---- grants ---------------------------------------------------------------------------------- */

/* The higher limit; 0 means no limit, and is the highest. */
static uint64_t wider(bool first, uint64_t limit, uint64_t other)
{
    return first ? other : limit == 0 || other == 0 ? 0 : limit > other ? limit : other;
}

/* Whether the rule names no models, or has the pattern "*". */
static bool is_for_all_models(const struct hps_access_rule *rule)
{
    bool all = rule->models.n == 0;
    for (size_t i = 0; i < rule->models.n; i++) {
        const char *pattern = rule->models.items[i];
        all |= pattern[strspn(pattern, "*")] == '\0';
    }
    return all;
}

static void add_rules(struct hps_access_grant *grant, const struct access_identity *identity,
                      const char *token, const char **out_certificate)
{
    const struct hps_access_file *file = &grant->rules->file;
    uint32_t seen = 0; /* roles of earlier rules */
    for (size_t i = 0; i < file->n_rules; i++) {
        const struct hps_access_rule *rule = &file->rules[i];
        if (!matches(rule, identity, token, out_certificate)) {
            continue;
        }
        grant->matched[grant->n_rules++] = (uint16_t)i;
        grant->roles |= rule->may;
        grant->roles_all |= is_for_all_models(rule) ? rule->may : 0;
        for (unsigned role = 0; role < ACCESS_ROLES; role++) {
            uint32_t *limit = &grant->requests_per_s[role];
            if ((rule->may & 1U << role) != 0) {
                *limit = (uint32_t)wider((seen & 1U << role) == 0, *limit, rule->requests_per_s);
            }
        }
        if ((rule->may & HPS_ROLE_LOOKUP) != 0) {
            bool first = (seen & HPS_ROLE_LOOKUP) == 0;
            grant->reply_bytes = wider(first, grant->reply_bytes, rule->reply_bytes);
        }
        seen |= rule->may;
    }
}

static void name_grant(struct hps_access_grant *grant, const struct access_identity *identity,
                       enum access_token kind, const char *token, const char *certificate)
{
    if (kind == ACCESS_TOKEN_ADMIN) {
        (void)snprintf(grant->who, sizeof(grant->who), "token:admin_token_file");
    } else if (token != NULL) {
        (void)snprintf(grant->who, sizeof(grant->who), "token:%s", token);
    } else if (identity->names != NULL) {
        (void)snprintf(grant->who, sizeof(grant->who), "cert:%s",
                       certificate != NULL ? certificate : identity->names);
    } else if (identity->is_unix) {
        (void)snprintf(grant->who, sizeof(grant->who), "user:%u", identity->user);
    } else {
        (void)snprintf(grant->who, sizeof(grant->who), "address:%s", identity->address);
    }
}

hps_status access_grant_new(struct hps_access *access, struct hps_limits *limits,
                            struct hps_access_rules *rules, const struct access_identity *identity,
                            enum access_token kind, size_t token_index, const uint8_t *token_sha256,
                            struct hps_access_grant **out_grant)
{
    HPS_ASSERT(kind <= ACCESS_TOKEN_ADMIN && (kind == ACCESS_TOKEN_NONE) == !token_sha256);
    const struct hps_access_token *token =
        kind == ACCESS_TOKEN_FILE ? &rules->file.tokens[token_index] : NULL;
    const char *name = token != NULL ? token->name : NULL;
    const char *certificate = NULL;
    struct hps_access_grant *grant =
        hps_calloc(1, sizeof(*grant) + rules->file.n_rules * sizeof(grant->matched[0]));
    if (grant == NULL) {
        return HPS_NO_MEMORY;
    }
    atomic_init(&grant->refs, 1);
    grant->access = access;
    grant->rules = rules_ref(rules);
    grant->admin = identity->admin;
    grant->expires_unix_s = token != NULL ? token->expires_unix_s : INT64_MAX;
    if (token_sha256 != NULL) {
        grant->has_token = true;
        memcpy(grant->token_sha256, token_sha256, sizeof(grant->token_sha256));
    }
    add_rules(grant, identity, name, &certificate);
    uint32_t own = own_roles(rules, identity, kind);
    grant->roles |= own;
    grant->roles_all |= own;
    for (unsigned role = 0; role < ACCESS_ROLES; role++) {
        grant->requests_per_s[role] = (own & 1U << role) != 0 ? 0 : grant->requests_per_s[role];
    }
    grant->reply_bytes = (own & HPS_ROLE_LOOKUP) != 0 ? 0 : grant->reply_bytes;
    name_grant(grant, identity, kind, name, certificate);
    grant->account = hps_account_get(limits, grant->who);
    if (grant->account == NULL) {
        hps_access_grant_unref(grant);
        return HPS_NO_MEMORY;
    }
    *out_grant = grant;
    return HPS_OK;
}

void access_grant_limit(struct hps_access_grant *grant, const struct hps_access_grant *newer)
{
    memcpy(grant->requests_per_s, newer->requests_per_s, sizeof(grant->requests_per_s));
    grant->reply_bytes = newer->reply_bytes;
}

struct hps_access_grant *access_grant_ref(struct hps_access_grant *grant)
{
    unsigned refs = atomic_fetch_add_explicit(&grant->refs, 1, memory_order_relaxed);
    HPS_ASSERT(refs > 0);
    return grant;
}

void hps_access_grant_unref(const struct hps_access_grant *const_grant)
{
    struct hps_access_grant *grant = (struct hps_access_grant *)(uintptr_t)const_grant;
    if (grant != NULL && atomic_fetch_sub_explicit(&grant->refs, 1, memory_order_acq_rel) == 1) {
        hps_account_unref(grant->account);
        hps_access_rules_unref(grant->rules);
        hps_free(grant);
    }
}

/* ---- models ---------------------------------------------------------------------------------- */

/* `*` in the pattern matches any number of characters. */
static bool glob(const char *pattern, const char *text, size_t size)
{
    const char *star = NULL; /* the last `*`, and the position in `text` at that time */
    size_t star_at = 0;
    size_t at = 0;
    while (at < size) {
        if (*pattern == '*') {
            star = pattern++;
            star_at = at;
        } else if (*pattern == text[at] && *pattern != '\0') {
            pattern++;
            at++;
        } else if (star != NULL) {
            pattern = star + 1;
            at = ++star_at;
        } else {
            return false;
        }
    }
    while (*pattern == '*') {
        pattern++;
    }
    return *pattern == '\0';
}

bool access_grant_allows(const struct hps_access_grant *grant, uint32_t role, const char *model,
                         size_t model_size)
{
    if ((grant->roles_all & role) != 0 || (grant->roles & role) == 0 || model == NULL) {
        return (grant->roles_all & role) != 0;
    }
    for (size_t i = 0; i < grant->n_rules; i++) {
        const struct hps_access_rule *rule = &grant->rules->file.rules[grant->matched[i]];
        for (size_t k = 0; (rule->may & role) != 0 && k < rule->models.n; k++) {
            if (glob(rule->models.items[k], model, model_size)) {
                return true;
            }
        }
    }
    return false;
}

/* Whether one pattern of `grant` for the role matches everything that `pattern` matches. A `*` in
 * `pattern` is matched only by a `*`. */
static bool has_pattern(const struct hps_access_grant *grant, uint32_t role, const char *pattern)
{
    size_t size = strlen(pattern);
    for (size_t i = 0; i < grant->n_rules; i++) {
        const struct hps_access_rule *rule = &grant->rules->file.rules[grant->matched[i]];
        for (size_t k = 0; (rule->may & role) != 0 && k < rule->models.n; k++) {
            if (glob(rule->models.items[k], pattern, size)) {
                return true;
            }
        }
    }
    return false;
}

static bool covers_one(const struct hps_access_grant *after, const struct hps_access_grant *before,
                       uint32_t role)
{
    if ((before->roles & role) == 0 || (after->roles_all & role) != 0) {
        return true;
    }
    if ((after->roles & role) == 0 || (before->roles_all & role) != 0) {
        return false;
    }
    for (size_t i = 0; i < before->n_rules; i++) {
        const struct hps_access_rule *rule = &before->rules->file.rules[before->matched[i]];
        for (size_t k = 0; (rule->may & role) != 0 && k < rule->models.n; k++) {
            if (!has_pattern(after, role, rule->models.items[k])) {
                return false;
            }
        }
    }
    return true;
}

bool access_grant_covers(const struct hps_access_grant *after,
                         const struct hps_access_grant *before, uint32_t roles)
{
    for (uint32_t role = 1; role <= HPS_ROLES_ALL; role <<= 1) {
        if ((roles & role) != 0 && !covers_one(after, before, role)) {
            return false;
        }
    }
    return true;
}

char *access_roles_print(uint32_t roles, char *text, size_t size)
{
    static const char *const words[] = {"lookup", "read", "load", "admin"};
    size_t n = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((roles & 1u << i) != 0 && n < size) {
            n += (size_t)snprintf(text + n, size - n, "%s%s", n > 0 ? ", " : "", words[i]);
        }
    }
    return text;
}
