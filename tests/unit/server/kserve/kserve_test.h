/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of KServe share: an arena, an error, and bodies in blocks of just their size, so that
 * ASan sees a read past the end. Used by one thread.
 */
#ifndef HPS_TESTS_UNIT_SERVER_KSERVE_TEST_H
#define HPS_TESTS_UNIT_SERVER_KSERVE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/heap.h"
#include "server/kserve/infer.h"

static struct hps_arena *arena;
static struct hps_error err;
static char *body;

static inline int setup(void **state)
{
    (void)state;
    arena = hps_arena_new(4096, 1 << 20);
    memset(&err, 0, sizeof(err));
    return arena == NULL ? -1 : 0;
}

static inline int teardown(void **state)
{
    (void)state;
    hps_arena_free(arena);
    hps_free(body);
    body = NULL;
    return 0;
}

/* A copy in a block of its own, until the next one. */
static inline struct kserve_text in_block(const void *text, size_t size)
{
    hps_free(body);
    body = hps_alloc(size);
    assert_non_null(body);
    memcpy(body, text, size);
    return (struct kserve_text){body, size};
}

static inline void assert_says(const char *what)
{
    if (strstr(err.text, what) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, what);
    }
}

static inline void assert_text(struct kserve_text text, const char *expected)
{
    assert_int_equal(text.size, strlen(expected));
    assert_memory_equal(text.at, expected, text.size);
}

#endif
