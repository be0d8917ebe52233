/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations that the files of this folder share: rules, identities, grants.
 */
#ifndef HPS_SERVER_ACCESS_RULES_H
#define HPS_SERVER_ACCESS_RULES_H

#include <stdatomic.h>

#include "net/limits.h"
#include "server/access/access.h"

enum { ACCESS_WHO_BYTES = 288, ACCESS_PEER_BYTES = 96 };

struct hps_access_rules {
    atomic_uint refs;
    bool has_file;
    bool has_admin_token;
    uint8_t admin_token[32];
    struct hps_access_file file; /* its tokens are sorted by digest */
};

/* Reads a file of one line, and returns the digest of the token in it. NOT_FOUND, INVALID,
 * NO_MEMORY. */
hps_status access_token_file_read(const char *path, uint8_t out_sha256[32], struct hps_error *err)
    HPS_MUST_CHECK;

/* The client of a connection. */
struct access_identity {
    bool admin; /* it came by an admin listener */
    bool is_unix;
    uint32_t user; /* this and the next two only if is_unix */
    gid_t *groups;
    size_t n_groups;
    bool in_socket_group;
    /* NUL-terminated names in the certificate, then an empty one; NULL: no names. */
    char *names;
    char address[64];
};

/* NO_MEMORY. */
hps_status access_identity_init(struct access_identity *identity, const struct hps_conn *conn,
                                bool admin) HPS_MUST_CHECK;
void access_identity_fini(struct access_identity *identity);

/* The kinds of tokens. */
enum access_token {
    ACCESS_TOKEN_NONE,  /* the call has no token, or the rules have no tokens */
    ACCESS_TOKEN_FILE,  /* a token of the role file */
    ACCESS_TOKEN_ADMIN, /* the token of admin_token_file */
    ACCESS_TOKEN_EXPIRED,
    ACCESS_TOKEN_UNKNOWN,
};

enum { ACCESS_ROLES = 4 };

struct hps_access_grant {
    _Atomic unsigned refs;
    struct hps_access *access;
    struct hps_access_rules *rules; /* referenced */
    struct hps_account *account;    /* referenced */
    bool admin;                     /* on an admin listener */
    bool has_token;
    uint8_t token_sha256[32];
    int64_t expires_unix_s; /* INT64_MAX: never */
    uint32_t roles;         /* for at least one model */
    uint32_t roles_all;     /* for all models */
    /* Limits; 0: no limit. A reload may change them, on the thread of the connection. */
    uint32_t requests_per_s[ACCESS_ROLES]; /* by the bit of the role */
    uint64_t reply_bytes;                  /* of lookups */
    char who[ACCESS_WHO_BYTES];
    size_t n_rules;
    uint16_t matched[]; /* indexes of the matching rules of the file */
};

/* The kind of the token with this digest. *out_index: its index in the file's tokens, for
 * ACCESS_TOKEN_FILE and EXPIRED. */
enum access_token access_rules_token(const struct hps_access_rules *rules, const uint8_t sha256[32],
                                     int64_t now_unix_s, size_t *out_index);
/* The earliest time after `now_unix_s` at which a token expires; INT64_MAX: never. */
int64_t access_rules_next_expiry(const struct hps_access_rules *rules, int64_t now_unix_s);
/* Whether tokens of calls on such connections are checked. */
bool access_rules_ask_token(const struct hps_access_rules *rules,
                            const struct access_identity *identity);

/* Creates the grant of an identity with a token (NULL: no token). `kind`: NONE, FILE or ADMIN.
 *
 * owner   *out_grant: the caller, hps_access_grant_unref
 * error   NO_MEMORY
 */
hps_status access_grant_new(struct hps_access *access, struct hps_limits *limits,
                            struct hps_access_rules *rules, const struct access_identity *identity,
                            enum access_token kind, size_t token_index, const uint8_t *token_sha256,
                            struct hps_access_grant **out_grant) HPS_MUST_CHECK;
struct hps_access_grant *access_grant_ref(struct hps_access_grant *grant);
/* model NULL: all models. */
bool access_grant_allows(const struct hps_access_grant *grant, uint32_t role, const char *model,
                         size_t model_size);
/* Whether `after` allows everything that `before` allows, for each of `roles`. May return false if
 * only several patterns of `after` together match as much as one pattern of `before`. */
bool access_grant_covers(const struct hps_access_grant *after,
                         const struct hps_access_grant *before, uint32_t roles);

/* Copies the limits of `newer` to `grant`, for calls that stay open after a reload. Thread of the
 * connection. */
void access_grant_limit(struct hps_access_grant *grant, const struct hps_access_grant *newer);

/* Prints role names such as "lookup", separated by commas. Returns `text`. */
char *access_roles_print(uint32_t roles, char *text, size_t size);

#endif
