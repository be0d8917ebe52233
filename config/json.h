/* SPDX-License-Identifier: Apache-2.0
 *
 * Parsing of JSON texts with jansson, which allocates from base/heap.h. Any thread.
 */
#ifndef HPS_CONFIG_JSON_H
#define HPS_CONFIG_JSON_H

#include <jansson.h>

#include "base/status.h"

/* A flag for hps_json_load: if a key is repeated in an object, use its last value. */
#define HPS_JSON_LAST_COUNTS ((size_t)1 << 31)

/* Parse JSON text. `flags` is a combination of the flags of jansson's json_loadb and
 * HPS_JSON_LAST_COUNTS. Without HPS_JSON_LAST_COUNTS, a repeated key in an object is an error.
 * jansson recurses up to 2,048 levels and needs several times the size of the text as memory. So
 * the text must be trusted, or its size limited.
 *
 * owner   *out_json: the caller, json_decref
 * error   INVALID: the text is not JSON, *out_error has the reason; NO_MEMORY
 */
hps_status hps_json_load(const char *text, size_t size, size_t flags, json_t **out_json,
                         json_error_t *out_error) HPS_MUST_CHECK;

#endif
