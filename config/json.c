/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for jansson, and detection of failed allocations. Any thread.
 */
#include "config/json.h"

#include <pthread.h>

#include "base/assert.h"
#include "base/heap.h"

/* Whether an allocation failed on this thread; jansson reports it as a syntax error. */
static _Thread_local bool lacks_memory;

static void *alloc(size_t size)
{
    void *memory = hps_alloc(size);

    lacks_memory = lacks_memory || memory == NULL;
    return memory;
}

static void use_heap(void)
{
    json_set_alloc_funcs(alloc, hps_free);
}

hps_status hps_json_load(const char *text, size_t size, size_t flags, json_t **out_json,
                         json_error_t *out_error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int rc = pthread_once(&once, use_heap);

    HPS_ASSERT(rc == 0);
    HPS_ASSERT(text != NULL);
    lacks_memory = false;
    size_t repeats = (flags & HPS_JSON_LAST_COUNTS) == 0 ? JSON_REJECT_DUPLICATES : 0;
    flags &= ~HPS_JSON_LAST_COUNTS;
    json_t *json = json_loadb(text, size, flags | repeats, out_error);
    if (lacks_memory) {
        /* if a table cannot grow, jansson returns an object without some members */
        json_decref(json);
        return HPS_NO_MEMORY;
    }
    if (json == NULL) {
        return HPS_INVALID;
    }
    *out_json = json;
    return HPS_OK;
}
