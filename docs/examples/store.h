/* SPDX-License-Identifier: Apache-2.0
 *
 * An example of a store, as CONTRIBUTING.md has it: rows in sorted arrays, one per table, in
 * memory. It is slow, and whole: the suite of tests that every store passes, this one passes too.
 */
#ifndef HPS_DOCS_EXAMPLES_STORE_H
#define HPS_DOCS_EXAMPLES_STORE_H

#include "backends/store.h"

/* error   NO_MEMORY */
hps_status hps_example_store_open(struct hps_store **out_store, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
