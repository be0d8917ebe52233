/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether bytes from outside, which may hold anything, NULs too, are a given text. Any thread.
 */
#ifndef HPS_BASE_TEXT_H
#define HPS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Are the bytes just the characters of `text`? */
static inline bool hps_text_is(const char *text, const void *bytes, size_t size)
{
    return strlen(text) == size && (size == 0 || memcmp(text, bytes, size) == 0);
}

#endif
