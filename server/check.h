/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that `hpsd --check` makes of the files that the configuration names. Files of models[] are
 * opened and compared as a load does it. No row is read and no store is opened. Main thread.
 */
#ifndef HPS_SERVER_CHECK_H
#define HPS_SERVER_CHECK_H

#include "config/config.h"

struct hps_check {
    const struct hps_config *config; /* finished; borrowed */
    /* A persistent store exists already. It is not opened, so its versions are unknown. Missing
     * model files are then warnings, because only a first start needs them. */
    bool stored;
    /* Called for each finding. is_error: hpsd would not start, or would not load the model. */
    void (*tell)(void *ctx, bool is_error, const char *text);
    void *ctx;
};

/* Check every table of every model: its files exist, are readable and have the right size; width
 * and default row match the configuration; width, dtype, rows and files match the manifest.json
 * next to them, if there is one. May block. Returns the number of errors. */
unsigned hps_check_models(const struct hps_check *check);
/* Estimate the bytes of all configured tables in the persistent store, in their stored row type. A
 * table with unreadable files counts as empty. May block. */
uint64_t hps_check_store_bytes(const struct hps_config *config);
/* Check the files that a start reads before it listens: the certificates, keys, CAs, revocation
 * lists and ciphers of server.tls, and whether they match; server.access; and
 * server.admin_token_file. May block. Returns the number of errors. */
unsigned hps_check_server(const struct hps_check *check);

#endif
