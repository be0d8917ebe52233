/* SPDX-License-Identifier: Apache-2.0
 *
 * The servers of a store that has some (backends/store_servers.h), as metrics and readiness show
 * them.
 */
#ifndef HPS_SERVER_CATALOG_STORE_SERVERS_H
#define HPS_SERVER_CATALOG_STORE_SERVERS_H

#include "backends/store.h"
#include "server/observe/metrics.h"

enum { HPS_STORE_SERVERS_MAX = 128 }; /* that are shown */

struct hps_store_servers;

/* Both are borrowed. NULL: no memory. */
struct hps_store_servers *hps_store_servers_new(struct hps_store *store,
                                                struct hps_metrics *metrics);
void hps_store_servers_free(struct hps_store_servers *servers); /* NULL is legal */
/* Bring the series up to date; those of servers that have left go. One thread at a time. */
void hps_store_servers_refresh(struct hps_store_servers *servers);

/* Whether every key has a server that is there; if not, `out_text` says so for people. Any thread.
 */
bool hps_store_servers_all_up(struct hps_store *store, char *out_text, size_t size);

#endif
