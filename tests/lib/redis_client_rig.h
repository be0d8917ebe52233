/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the client of Redis share: a server or a cluster, and a client, which the teardown
 * closes. One thread.
 */
#ifndef HPS_TESTS_LIB_REDIS_CLIENT_RIG_H
#define HPS_TESTS_LIB_REDIS_CLIENT_RIG_H

#include "tests/lib/redis_calls.h"
#include "tests/lib/redis_rig.h"

static struct hps_redis_rig *shared; /* of all tests of a group: three masters */
static struct hps_redis_rig *rig;    /* of the test: one server, or NULL */
static struct hps_redis_options options;
static struct hps_redis_cluster *cluster;

static inline int shared_start(void **state)
{
    (void)state;
    shared = hps_redis_rig_cluster(3, 0, NULL);
    return 0;
}

static inline int shared_start_with_replicas(void **state)
{
    (void)state;
    shared = hps_redis_rig_cluster(3, 1, NULL);
    return 0;
}

static inline int shared_stop(void **state)
{
    (void)state;
    hps_redis_rig_free(shared);
    shared = NULL;
    return 0;
}

/* The options are the default ones, and lead to the shared servers if there are any. */
static inline int client_setup(void **state)
{
    (void)state;
    options = HPS_REDIS_OPTIONS_DEFAULT;
    if (shared != NULL) {
        options.addresses = hps_redis_rig_addresses(shared);
    }
    return 0;
}

static inline void client_close(void)
{
    hps_redis_cluster_close(cluster);
    cluster = NULL;
}

static inline int client_teardown(void **state)
{
    (void)state;
    client_close();
    hps_redis_rig_free(rig);
    rig = NULL;
    return 0;
}

#define CLIENT_TEST(name) cmocka_unit_test_setup_teardown(name, client_setup, client_teardown)

/* Start the server of the test, where the options lead to then. args: NULL-ended, or NULL */
static inline void server_start(const char *const *args)
{
    rig = hps_redis_rig_standalone(args);
    options.addresses = hps_redis_rig_addresses(rig);
}

/* Open the client, whether its servers answer or not. */
static inline void client_open(void)
{
    assert_int_equal(hps_redis_cluster_open(&options, &cluster, NULL), HPS_OK);
}

/* The same, of servers that answer. */
static inline void client_connect(void)
{
    cluster = redis_open_with(&options);
}

/* The same, so patient that it is about nothing that is late. */
static inline void client_connect_patiently(void)
{
    options.command_timeout_us = REDIS_PATIENCE_US;
    options.connect_timeout_us = REDIS_PATIENCE_US;
    client_connect();
}

#endif
