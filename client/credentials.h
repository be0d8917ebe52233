/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens and TLS of the clients: read from files, and kept from networks without TLS. Any thread.
 */
#ifndef HPS_CLIENT_CREDENTIALS_H
#define HPS_CLIENT_CREDENTIALS_H

#include <stdbool.h>

#include "base/status.h"

struct hps_tls;

enum { HPS_CLIENT_TOKEN_BYTES_MAX = 4096 };

/* How to use TLS; any of the files implies `on`. */
struct hps_client_tls {
    bool on;
    const char *ca;   /* PEM file; NULL: the system's CAs */
    const char *cert; /* PEM file; NULL: no certificate */
    const char *key;  /* PEM file; NULL: the key is in `cert` */
    const char *name; /* in the server's certificate; NULL: the host of the address */
};

/* Whether a token has 1 to HPS_CLIENT_TOKEN_BYTES_MAX - 1 printable characters without spaces. */
bool hps_client_token_is_plain(const char *token);
/* Reads the token in the first line of the file.
 *
 * error   NOT_FOUND, PERMISSION, IO; INVALID: not one line of printable characters without spaces
 */
hps_status hps_client_token_read(const char *path, char out_token[HPS_CLIENT_TOKEN_BYTES_MAX + 1],
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Whether a token may go to this address without TLS: to this host only. INVALID: not; `err` names
 * `option`, which allows it. */
hps_status hps_client_token_check(const char *address, const char *option, struct hps_error *err)
    HPS_MUST_CHECK;
/* *out_tls: NULL without TLS, and for a Unix socket; hps_tls_unref. Returns the errors of
 * hps_tls_new. */
hps_status hps_client_tls_open(const struct hps_client_tls *options, const char *address,
                               struct hps_tls **out_tls, struct hps_error *err) HPS_MUST_CHECK;

#endif
