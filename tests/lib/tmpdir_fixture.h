/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixtures for cmocka_unit_test_setup_teardown that give each test a temporary directory, `dir`.
 */
#ifndef HPS_TESTS_LIB_TMPDIR_FIXTURE_H
#define HPS_TESTS_LIB_TMPDIR_FIXTURE_H

#include "tests/lib/tmpdir.h"

static struct hps_tmpdir dir;

static inline int setup(void **state)
{
    (void)state;
    hps_tmpdir_open(&dir);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    hps_tmpdir_close(&dir);
    return 0;
}

#endif
