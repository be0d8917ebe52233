/* SPDX-License-Identifier: Apache-2.0
 *
 * The role file, `server.access`: who may do what. Read into one plain, owned struct;
 * server/access/ decides by it. Main thread.
 *
 *   {"rules": [{"who": ["cert:trainer.example", "user:deploy", "group:ops", "token:ci", "any"],
 *               "may": ["lookup", "read", "load", "admin"],
 *               "models": ["dlrm", "ads-*"], "requests_per_s": 0, "reply_bytes": 0}],
 *    "tokens": [{"name": "ci", "sha256": "9f86d0...", "expires": "2027-01-31T00:00:00Z"}]}
 *
 * Comments are allowed, as in the configuration; unknown keys are not.
 */
#ifndef HPS_CONFIG_ACCESS_H
#define HPS_CONFIG_ACCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"
#include "config/config.h"

/* Bits of a set. No role includes another one. */
enum hps_access_role {
    HPS_ROLE_LOOKUP = 1, /* rows */
    HPS_ROLE_READ = 2,   /* state and metrics: nothing is changed */
    HPS_ROLE_LOAD = 4,   /* versions: load, activate, roll back, unload */
    HPS_ROLE_ADMIN = 8,  /* all else */
    HPS_ROLES_ALL = 15,
};

enum hps_access_kind {
    HPS_ACCESS_ANY,
    HPS_ACCESS_CERTIFICATE, /* a URI, a DNS name in lower case, or a subject */
    HPS_ACCESS_USER,
    HPS_ACCESS_GROUP,
    HPS_ACCESS_TOKEN,
};

/* One entry of "who". */
struct hps_access_name {
    enum hps_access_kind kind;
    char *name;  /* certificate, token; else NULL */
    uint32_t id; /* user, group: looked up when the file was read */
};

struct hps_access_rule {
    struct hps_access_name *who;
    size_t n_who;
    uint32_t may;              /* of enum hps_access_role */
    struct hps_strings models; /* names with * for any characters; empty: all */
    uint32_t requests_per_s;   /* of each one that it names; 0: no limit */
    uint64_t reply_bytes;      /* in flight, the same; 0: no limit */
};

struct hps_access_token {
    char *name;
    uint8_t sha256[32];
    int64_t expires_unix_s; /* INT64_MAX: never */
};

struct hps_access_file {
    struct hps_access_rule *rules;
    size_t n_rules;
    struct hps_access_token *tokens;
    size_t n_tokens;
};

/* Read the file at `path`, of at most 4 MiB.
 *
 * error   INVALID "FILE:LINE: rules[0].may[1]: got ..., expected ..."; also a user or group that
 *         this host does not know, a token that is not in "tokens"; IO, NOT_FOUND, PERMISSION,
 *         NO_MEMORY
 * owner   *out_file: the caller, hps_access_file_fini
 */
hps_status hps_access_file_read(const char *path, struct hps_access_file *out_file,
                                struct hps_error *err) HPS_MUST_CHECK;
/* The same of text; `file` is for messages only. */
hps_status hps_access_file_parse(const char *text, size_t size, const char *file,
                                 struct hps_access_file *out_file, struct hps_error *err)
    HPS_MUST_CHECK;
void hps_access_file_fini(struct hps_access_file *file); /* a zeroed one is legal */

#endif
