/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of `hpsd --check`: files that the configuration names. Files of models[] are opened
 * and checked as by a load, but no row is read. No store is opened. Main thread.
 */
#ifndef HPS_SERVER_CHECK_H
#define HPS_SERVER_CHECK_H

#include "config/config.h"

struct hps_check {
    const struct hps_config *config; /* finished (hps_config_finish); borrowed */
    /* Whether a persistent store exists already. If so, missing model files are warnings, not
     * errors, because the store may have the versions that hpsd is to serve. */
    bool stored;
    /* Called for each error and each warning. is_error is true if hpsd would not start, or would
     * not load the model. */
    void (*tell)(void *ctx, bool is_error, const char *text);
    void *ctx;
};

/* Check the label and the tables of every model. The files of a table must exist, be readable and
 * have the right size. Their row width must match the configuration and the default row. If a
 * manifest.json is next to the files, they must match the widths, types, numbers of rows and file
 * sizes in the manifest. May block. Returns the number of errors. */
unsigned hps_check_models(const struct hps_check *check);
/* Estimate the bytes that all configured tables would take in the persistent store, in the row type
 * in which they would be stored. A table with unreadable files counts as empty. May block. */
uint64_t hps_check_store_bytes(const struct hps_config *config);
/* Check the files that a start reads before it listens: the certificates, keys, CAs and revocation
 * lists of server.tls, the file of server.access, and server.admin_token_file. Also check the
 * ciphers of server.tls, and whether its files match each other. May block. Returns the number of
 * errors. */
unsigned hps_check_server(const struct hps_check *check);

#endif
