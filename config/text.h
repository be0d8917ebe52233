/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a configuration file, for error messages. Functions replace comments by blanks, so
 * that all other text keeps its offset. They find the line and the spelling of a value from its
 * JSON path, because the JSON library records neither. Private to config/.
 */
#ifndef HPS_CONFIG_TEXT_H
#define HPS_CONFIG_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hps_text {
    const char *file; /* name of the file, for messages; borrowed */
    char *text;       /* NUL-terminated; comments are replaced by blanks */
    size_t size;      /* of the text, without the NUL */
};

/* A JSON path, as a linked list of steps. The list begins with the innermost step. */
struct hps_text_path {
    const struct hps_text_path *parent; /* NULL: this step is directly below the root */
    const char *key;                    /* member of an object; NULL: element of an array */
    size_t index;                       /* number of the element, if key is NULL */
};

/* Copy `text` and replace its comments by blanks. INVALID: a comment is not closed; NO_MEMORY. */
hps_status hps_text_init(struct hps_text *source, const char *file, const char *text, size_t size,
                         struct hps_error *err) HPS_MUST_CHECK;
void hps_text_fini(struct hps_text *source);

/* The line, counted from 1, of the byte at `offset`. */
unsigned hps_text_line(const struct hps_text *source, size_t offset);
/* The offset of the value at `path`; NULL is the path of the root. If an object repeats a key, the
 * last value counts. If the value does not exist, returns the offset of the nearest enclosing
 * value. The text must be JSON. */
size_t hps_text_locate(const struct hps_text *source, const struct hps_text_path *path);
/* Copies the value at `path` as it is written in the text. A longer value is cut to `size` bytes
 * and ends with "...". Control characters become blanks. */
void hps_text_spelling(const struct hps_text *source, const struct hps_text_path *path,
                       char *out_text, size_t size);
/* Copies the value at `path` for a message: as it is written in the text, or as "an object" or "a
 * list". If the value may be secret, copies "a value that is not shown". Cut like
 * hps_text_spelling. */
void hps_text_got(const struct hps_text *source, const struct hps_text_path *path, char *out_text,
                  size_t size);
/* Prints a path: "models[0].sparse_files"; "" for the root. Truncated to `size` bytes. */
void hps_text_path_print(const struct hps_text_path *path, char *out_text, size_t size);
/* Calls `fn` once for each key that is repeated in its object, with the path of the key and the
 * offset of its second value. The text must be JSON. If there is no memory, some keys are left
 * out. */
void hps_text_repeats(const struct hps_text *source,
                      void (*fn)(void *ctx, const struct hps_text_path *path, size_t offset),
                      void *ctx);
/* Prints the path of the value that contains the byte at `offset`, for errors of the JSON library.
 * Truncated to `size` bytes. */
void hps_text_path_at(const struct hps_text *source, size_t offset, char *out_text, size_t size);

#endif
