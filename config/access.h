/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the role file (option `server.access`) into a plain struct. The file gives roles to
 * identities; server/access/ enforces these roles. Main thread.
 *
 *   {"rules": [{"who": ["cert:trainer.example", "user:deploy", "group:ops", "token:ci", "any"],
 *               "may": ["lookup", "read", "load", "admin"],
 *               "models": ["dlrm", "ads-*"], "requests_per_s": 0, "reply_bytes": 0}],
 *    "tokens": [{"name": "ci", "sha256": "9f86d0...", "expires": "2027-01-31T00:00:00Z"}]}
 *
 * Comments are allowed, as in the configuration file. Unknown keys are errors.
 */
#ifndef HPS_CONFIG_ACCESS_H
#define HPS_CONFIG_ACCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "config/config.h"

/* Bits of a set of roles. No role includes another one. */
enum hps_access_role {
    HPS_ROLE_LOOKUP = 1, /* look up rows */
    HPS_ROLE_READ = 2,   /* read state and metrics */
    HPS_ROLE_LOAD = 4,   /* load, activate, roll back and unload versions */
    HPS_ROLE_ADMIN = 8,  /* all other calls */
    HPS_ROLES_ALL = 15,
};

enum hps_access_kind {
    HPS_ACCESS_ANY,
    HPS_ACCESS_CERTIFICATE, /* a client certificate with this name (hps_tls_session_name) */
    HPS_ACCESS_USER,
    HPS_ACCESS_GROUP,
    HPS_ACCESS_TOKEN,
};

/* One entry of "who": a kind of identity, with a name or number. */
struct hps_access_name {
    enum hps_access_kind kind;
    char *name;  /* of a certificate or token; NULL for the other kinds */
    uint32_t id; /* uid of a user or gid of a group, resolved when the file was read */
};

struct hps_access_rule {
    struct hps_access_name *who;
    size_t n_who;
    uint32_t may;              /* bits of enum hps_access_role */
    struct hps_strings models; /* model names, where * matches any characters; empty: all models */
    uint32_t requests_per_s;   /* for each identity: limit of calls and messages; 0: no limit */
    uint64_t reply_bytes;      /* for each identity: limit of lookups in flight; 0: no limit */
};

struct hps_access_token {
    char *name;
    uint8_t sha256[32];
    int64_t expires_unix_s; /* INT64_MAX: the token does not expire */
};

struct hps_access_file {
    struct hps_access_rule *rules;
    size_t n_rules;
    struct hps_access_token *tokens;
    size_t n_tokens;
};

/* Read the file at `path`, at most 4 MiB.
 *
 * error   INVALID: "FILE:LINE: rules[0].may[1]: got ..., expected ...". INVALID also if a user or
 *         group does not exist on this host, or if a token is not in "tokens". IO, NOT_FOUND,
 *         PERMISSION, NO_MEMORY
 * owner   *out_file: the caller, hps_access_file_fini
 */
hps_status hps_access_file_read(const char *path, struct hps_access_file *out_file,
                                struct hps_error *err) HPS_MUST_CHECK;
/* Like hps_access_file_read, but from text[size] in memory. `file` is the file name for messages.
 */
hps_status hps_access_file_parse(const char *text, size_t size, const char *file,
                                 struct hps_access_file *out_file, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_access_file_fini(struct hps_access_file *file); /* no effect if all zero */

#endif
