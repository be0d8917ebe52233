/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client shows of itself, and what it asks of a server: a token, TLS. Any thread.
 */
#ifndef HPS_CLIENT_CREDENTIALS_H
#define HPS_CLIENT_CREDENTIALS_H

#include "client/client.h"

enum { HPS_CLIENT_TOKEN_BYTES_MAX = 4096 };

struct hps_tls; /* net/tls.h */

struct hps_client_credentials {
    struct hps_tls *tls;                        /* NULL: none; owner: these credentials */
    char token[HPS_CLIENT_TOKEN_BYTES_MAX + 1]; /* "": none */
};

/* Read what the options name.
 *
 * unit    http1: for HTTP/1.1, instead of gRPC
 * error   NOT_FOUND, PERMISSION, IO, INVALID: the file
 */
hps_status hps_client_credentials_open(const struct hps_client_options *options, bool http1,
                                       struct hps_client_credentials *out_credentials,
                                       struct hps_error *err) HPS_MUST_CHECK;
void hps_client_credentials_close(struct hps_client_credentials *credentials);

#endif
