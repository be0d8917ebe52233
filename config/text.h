/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a configuration file. It removes comments without moving other text. It finds the
 * line and the spelling of a value from its JSON path, which the JSON library does not record.
 * Private to config/.
 */
#ifndef HPS_CONFIG_TEXT_H
#define HPS_CONFIG_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct hps_text {
    const char *file;
    char *text; /* NUL-terminated; comments are replaced by blanks */
    size_t size;
};

/* One step of a JSON path, innermost first. key NULL: element `index` of an array. */
struct hps_text_path {
    const struct hps_text_path *parent; /* NULL: the root */
    const char *key;
    size_t index;
};

/* Copy `text` and replace its comments by blanks. INVALID: a comment is not closed; NO_MEMORY. */
hps_status hps_text_init(struct hps_text *source, const char *file, const char *text, size_t size,
                         struct hps_error *err) HPS_MUST_CHECK;
void hps_text_fini(struct hps_text *source);

/* Line, counted from 1, of a byte. */
unsigned hps_text_line(const struct hps_text *source, size_t offset);
/* Offset of the value at `path` (NULL: the root); of a repeated key, the last value. If it cannot
 * be found: offset of the nearest enclosing value. The text must be JSON. */
size_t hps_text_locate(const struct hps_text *source, const struct hps_text_path *path);
/* The value as written, cut to size; control characters become blanks. */
void hps_text_spelling(const struct hps_text *source, const struct hps_text_path *path,
                       char *out_text, size_t size);
/* The value as shown in messages: a scalar as written, "an object", "a list", or "a value that is
 * not shown" if it may be secret. Cut to size. */
void hps_text_got(const struct hps_text *source, const struct hps_text_path *path, char *out_text,
                  size_t size);
/* Print a path: "models[0].sparse_files"; "" for the root. Cut to size. */
void hps_text_path_print(const struct hps_text_path *path, char *out_text, size_t size);
/* Call `fn` once for each repeated key of an object, with the path and the offset of its second
 * value. The text must be JSON. If there is no memory, keys are left out. */
void hps_text_repeats(const struct hps_text *source,
                      void (*fn)(void *ctx, const struct hps_text_path *path, size_t offset),
                      void *ctx);
/* The path of the byte at `offset`, for errors of the JSON library. */
void hps_text_path_at(const struct hps_text *source, size_t offset, char *out_text, size_t size);

#endif
