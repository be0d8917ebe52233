/* SPDX-License-Identifier: Apache-2.0
 *
 * W3C Trace Context (https://www.w3.org/TR/trace-context/): whose trace a request is part of, so
 * that a slow one can be found in the traces of those who called. Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_TRACE_H
#define HPS_SERVER_OBSERVE_TRACE_H

#include <stdbool.h>
#include <stddef.h>

enum { HPS_TRACE_ID_CHARS = 32 };

/* The trace id of a `traceparent` header, as text. header[size], not ended by NUL; NULL: there is
 * none. False, and "": it is not a header that the specification lets one use. */
bool hps_trace_id(const char *header, size_t size, char out_id[HPS_TRACE_ID_CHARS + 1]);

#endif
