/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers for tests of catalogs and loads: files of rows, and waiting for loads and unloads. Used
 * by one thread.
 */
#ifndef HPS_TESTS_LIB_CATALOG_FIXTURE_H
#define HPS_TESTS_LIB_CATALOG_FIXTURE_H

#include <stdatomic.h>

#include "base/rows/rowfile.h"
#include "server/catalog/catalog.h"
#include "tests/lib/pause.h"

enum { FIXTURE_DIM_MAX = 8 };

/* Write a .npy file with n rows. Row i has key i, and all its values are base + i. */
static inline void fixture_write_rows(const char *path, uint32_t dim, uint32_t n, float base)
{
    const struct hps_row_writer_options options = {HPS_ROW_FORM_NPY, dim, HPS_DTYPE_FP32};
    struct hps_row_writer *writer;
    assert_true(dim <= FIXTURE_DIM_MAX);
    assert_int_equal(hps_row_writer_open(path, &options, &writer, NULL), HPS_OK);
    for (hps_key key = 0; key < n; key++) {
        float row[FIXTURE_DIM_MAX];
        for (uint32_t i = 0; i < dim; i++) {
            row[i] = base + (float)key;
        }
        assert_int_equal(hps_row_writer_append(writer, &key, row, 1, NULL), HPS_OK);
    }
    assert_int_equal(hps_row_writer_close(writer, NULL), HPS_OK);
}

/* takes `load`. Wait until it ends. */
static inline void fixture_load_end(struct hps_load *load, struct hps_load_state *out_state)
{
    do {
        brief_pause();
        hps_load_state_get(load, out_state);
    } while (!out_state->done);
    hps_load_unref(load);
}

/* An unload that a test can wait for. */
struct fixture_unload {
    struct hps_unload unload; /* first */
    atomic_bool done;
    struct hps_error error;
};

static inline void fixture_on_unloaded(struct hps_unload *unload, const struct hps_error *error)
{
    struct fixture_unload *wait = (struct fixture_unload *)(void *)unload;
    assert_false(wait->done);
    wait->error = *error;
    atomic_store(&wait->done, true);
}

static inline struct fixture_unload fixture_unload_new(void)
{
    return (struct fixture_unload){.unload = {.done = fixture_on_unloaded}};
}

#endif
