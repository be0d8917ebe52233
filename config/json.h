/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing of JSON texts with jansson, which allocates from base/heap.h. Any thread.
 */
#ifndef HPS_CONFIG_JSON_H
#define HPS_CONFIG_JSON_H

#include <jansson.h>

#include "base/status.h"

/* A flag for hps_json_load: the last value of a repeated key counts. */
#define HPS_JSON_LAST_COUNTS ((size_t)1 << 31)

/* Parse a text. `flags`: flags of json_loadb and HPS_JSON_LAST_COUNTS. Without the latter a
 * repeated key of an object is an error. jansson recurses up to 2,048 levels and needs several
 * times the memory of the text, so the text must be trusted or bounded.
 *
 * owner   *out_json: the caller, json_decref
 * error   INVALID: not JSON; *out_error says why; NO_MEMORY
 */
hps_status hps_json_load(const char *text, size_t size, size_t flags, json_t **out_json,
                         json_error_t *out_error) HPS_MUST_CHECK;

#endif
