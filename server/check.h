/* SPDX-License-Identifier: Apache-2.0
 *
 * What `hpsd --check` says of files that the configuration names. Those of models[] are opened and
 * compared as a load does it, but no row is read and no store is opened. Main thread.
 */
#ifndef HPS_SERVER_CHECK_H
#define HPS_SERVER_CHECK_H

#include "config/config.h"

struct hps_check {
    const struct hps_config *config; /* finished; borrowed */
    /* There is a persistent store already, with unknown versions in it: it is not opened. Then
     * files that are missing are reported as a warning, as only a first start needs them. */
    bool stored;
    /* Called for each finding. An error: hpsd would not start, or not load the model. */
    void (*tell)(void *ctx, bool is_error, const char *text);
    void *ctx;
};

/* Every table of every model: are its files there, readable, whole by their sizes; has it the
 * width, and its default row as many values, that the configuration says; and what a manifest.json
 * beside it says of its width, dtype, rows and files. May block. Returns the number of errors. */
unsigned hps_check_models(const struct hps_check *check);
/* Estimated bytes of all configured tables in the persistent store, as their rows are stored. A
 * table whose files cannot be opened counts as empty. May block. */
uint64_t hps_check_store_bytes(const struct hps_config *config);
/* What a start reads before it listens: certificates, keys, CAs and lists of revoked ones of
 * server.tls, whether they go together, and its ciphers; server.access and server.admin_token_file.
 * May block. Returns the number of errors. */
unsigned hps_check_server(const struct hps_check *check);

#endif
