/* SPDX-License-Identifier: Apache-2.0
 *
 * The running daemon: its threads and services, from open to drained. Main thread.
 */
#ifndef HPS_SERVER_DAEMON_H
#define HPS_SERVER_DAEMON_H

#include "cache/device/device.h"
#include "config/config.h"
#include "server/load/loader.h"

struct hps_daemon;

struct hps_daemon_options {                  /* borrowed for the life of the daemon */
    struct hps_config *config;               /* a reload changes it */
    const char *config_file;                 /* read again on SIGHUP; NULL: started with --table */
    const struct hps_config_flags *flags;    /* applied again after a reload */
    struct hps_load_env env;                 /* the stores and the budgets of loads */
    struct hps_update_log *update_log;       /* NULL: versions take no updates */
    const struct hps_device_driver *devices; /* for embedding caches */
};

/* Bind the listeners, open the catalog, start the threads.
 * error   BUSY: an address is in use; other errors of the catalog and of the TLS files */
hps_status hps_daemon_open(const struct hps_daemon_options *options, struct hps_daemon **out_daemon,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Print the `listening` line, and the `ready` line when the daemon is ready for the first time.
 * Serve until the daemon has drained or must stop at once. */
void hps_daemon_run(struct hps_daemon *daemon);
/* After hps_daemon_run: whether a failure ended the daemon. The log has the reason. */
bool hps_daemon_failed(const struct hps_daemon *daemon);
/* Join every thread and free the daemon. The stores stay open. No effect if NULL. */
void hps_daemon_close(struct hps_daemon *daemon);

#endif
