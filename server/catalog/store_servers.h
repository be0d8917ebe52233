/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports the servers of a store (backends/store_servers.h) in metrics, and checks for readiness
 * that they are reachable.
 */
#ifndef HPS_SERVER_CATALOG_STORE_SERVERS_H
#define HPS_SERVER_CATALOG_STORE_SERVERS_H

#include "backends/store.h"
#include "server/observe/metrics.h"

enum { HPS_STORE_SERVERS_MAX = 128 }; /* limit on the servers shown in metrics */

struct hps_store_servers;

/* `store` and `metrics` are borrowed until hps_store_servers_free. Returns NULL if there is no
 * memory. */
struct hps_store_servers *hps_store_servers_new(struct hps_store *store,
                                                struct hps_metrics *metrics);
void hps_store_servers_free(struct hps_store_servers *servers); /* no effect if NULL */
/* Update the metric series of all servers, and remove the series of servers that left the store.
 * One thread at a time. */
void hps_store_servers_refresh(struct hps_store_servers *servers);

/* Returns true if every hash slot of the store has a reachable server, or if the store does not
 * consist of servers. Otherwise out_text[size] gets a sentence with the number of slots that have
 * no reachable server. Any thread. */
bool hps_store_servers_all_up(struct hps_store *store, char *out_text, size_t size);

#endif
