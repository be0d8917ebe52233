/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON texts, read by jansson with the memory of base/heap.h. Any thread.
 */
#ifndef HPS_CONFIG_JSON_H
#define HPS_CONFIG_JSON_H

#include <jansson.h>

#include "base/status.h"

/* The value that a text is; a member that is there twice makes it an illegal one, and `flags` are
 * those of json_loadb beside that. jansson calls itself for what is nested, up to 2,048 deep, and
 * needs a multiple of the size in memory: for texts of those who may not do harm, or bounded ones.
 *
 * owner   *out_json: the caller, json_decref
 * error   INVALID: the text, and *out_error says why; NO_MEMORY
 */
hps_status hps_json_load(const char *text, size_t size, size_t flags, json_t **out_json,
                         json_error_t *out_error) HPS_MUST_CHECK;

#endif
