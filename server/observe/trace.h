/* SPDX-License-Identifier: Apache-2.0
 *
 * W3C Trace Context (https://www.w3.org/TR/trace-context/). The trace id of a slow request lets an
 * operator find it in the traces of its callers. Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_TRACE_H
#define HPS_SERVER_OBSERVE_TRACE_H

#include <stdbool.h>
#include <stddef.h>

enum { HPS_TRACE_ID_CHARS = 32 };

/* The trace id of a `traceparent` header, as text. header[size] is not NUL-terminated; NULL: no
 * header. False, with "": the header is missing or invalid. */
bool hps_trace_id(const char *header, size_t size, char out_id[HPS_TRACE_ID_CHARS + 1]);

#endif
