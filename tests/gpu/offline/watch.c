/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives the simulated device the kernels from nvcc's PTX, and watches each launch. Thread: as
 * watch.h says.
 */
#include "tests/gpu/offline/watch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "cache/device/sim/run.h"
#include "tests/gpu/offline/bodies.h"

enum { UNIT = 16, ENTRY_BITS = 20, PROBES_MAX = 1 << 16 };

/* Of UNIT bytes: which of them were loaded and which were stored, a bit each, in one launch. */
struct entry {
    uint64_t unit; /* address / UNIT */
    uint32_t launch;
    uint16_t loaded, stored;
    int load_line, store_line;
};

static pthread_key_t table_key; /* frees the table of a thread that ends */
static _Thread_local struct entry *table;
static _Thread_local uint32_t launch;
static _Thread_local const char *running;

/* In place of sim/kernels.c. A kernel that the PTX lacks is a fault of the build. */
hps_sim_body hps_sim_body_of(const struct hps_kernel *kernel)
{
    for (size_t i = 0; i < n_offline_bodies; i++) {
        if (strcmp(offline_bodies[i].kernel, kernel->name) == 0) {
            watch_launch(kernel->name);
            return offline_bodies[i].run;
        }
    }
    (void)fprintf(stderr, "watch: no PTX of kernel %s\n", kernel->name);
    abort();
}

void watch_launch(const char *kernel)
{
    running = kernel;
    launch++;
}

static void table_free(void *of_thread)
{
    hps_free(of_thread);
}

static void key_new(void)
{
    HPS_ASSERT(pthread_key_create(&table_key, table_free) == 0);
}

static void table_new(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    HPS_ASSERT(pthread_once(&once, key_new) == 0);
    table = hps_calloc((size_t)1 << ENTRY_BITS, sizeof(*table));
    HPS_ASSERT(table != NULL && pthread_setspecific(table_key, table) == 0);
}

static struct entry *entry_of(uint64_t unit)
{
    uint64_t at = unit * 0x9e3779b97f4a7c15u >> (64 - ENTRY_BITS);

    for (unsigned probe = 0; probe < PROBES_MAX; probe++) {
        struct entry *entry = &table[(at + probe) & ((1u << ENTRY_BITS) - 1)];
        if (entry->launch != launch) {
            *entry = (struct entry){.unit = unit, .launch = launch};
        }
        if (entry->unit == unit) {
            return entry;
        }
    }
    (void)fprintf(stderr, "watch: kernel %s uses more memory than is watched\n", running);
    abort();
}

void watch_note(uint64_t address, unsigned bytes, enum watch_access access, int line)
{
    if (access == WATCH_LOAD) {
        return;
    }
    if (table == NULL) {
        table_new();
    }
    /* an aligned access of at most UNIT bytes is within one unit; ptx.h checks that it is aligned
     */
    struct entry *entry = entry_of(address / UNIT);
    uint16_t bits = (uint16_t)(((1u << bytes) - 1) << address % UNIT);
    if (access == WATCH_STORE) {
        entry->stored |= bits;
        entry->store_line = line;
    } else {
        entry->loaded |= bits;
        entry->load_line = line;
    }
    if ((entry->loaded & entry->stored) != 0) {
        (void)fprintf(stderr,
                      "watch: kernel %s, address %#" PRIx64 ": loaded by ld.global.nc at line %d "
                      "and stored at line %d of the PTX in one launch\n",
                      running, address, entry->load_line, entry->store_line);
        abort();
    }
}
