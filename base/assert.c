/* SPDX-License-Identifier: Apache-2.0
 *
 * Failure of an assertion. Any thread.
 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

static void (*assert_hook)(const char *expr, const char *file, int line);

void hps_assert_hook(void (*hook)(const char *expr, const char *file, int line))
{
    assert_hook = hook;
}

void hps_assert_failed(const char *expr, const char *file, int line)
{
    if (assert_hook != NULL) {
        assert_hook(expr, file, line);
    }
    fprintf(stderr, "hps: assertion failed: %s (%s:%d)\n", expr, file, line);
    abort();
}
