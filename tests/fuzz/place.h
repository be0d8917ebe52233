/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory of the target's own for what it reads from files, made by the first input and removed
 * at the end of the program. $TMPDIR should be in memory.
 */
#ifndef HPS_TESTS_FUZZ_PLACE_H
#define HPS_TESTS_FUZZ_PLACE_H

#include <stdlib.h>

#include "base/assert.h"
#include "tests/lib/tmpdir.h"

static struct hps_tmpdir place_dir;

static void place_close(void)
{
    hps_tmpdir_close(&place_dir);
}

/* true: this is the first input. */
static inline bool place_open(void)
{
    if (place_dir.path[0] != '\0') {
        return false;
    }
    hps_tmpdir_open(&place_dir);
    HPS_ASSERT(atexit(place_close) == 0);
    return true;
}

#endif
