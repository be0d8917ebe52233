/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files that parse the configuration: parse.c, parse_models.c and parse_access.c.
 * Main thread.
 */
#ifndef HPS_CONFIG_PARSE_INTERNAL_H
#define HPS_CONFIG_PARSE_INTERNAL_H

#include "config/json.h"
#include "config/options.h"
#include "config/text.h"

enum { GOT_CHARS = 64 }; /* longest value shown in a message */

struct parse_reader {
    struct hps_text source;
    struct hps_config *config;
    struct hps_notes *notes;
    struct hps_error *err; /* the first error; never NULL */
};

/* OK: continue after an error, which is in the notes. Else NO_MEMORY, or EXHAUSTED if there is no
 * space for another error. */
static inline hps_status parse_go_on(hps_status status)
{
    return status == HPS_INVALID || status == HPS_UNIMPLEMENTED ? HPS_OK : status;
}

/* Record the error "FILE:LINE: PATH: " and the text. Returns `status`; EXHAUSTED if it was the last
 * error with space, or NO_MEMORY. */
hps_status HPS_PRINTF(4, 5)
    parse_fail(const struct parse_reader *reader, const struct hps_text_path *path,
               hps_status status, const char *fmt, ...);
/* The same as a note for the log. Returns OK or NO_MEMORY. */
hps_status HPS_PRINTF(4, 5)
    parse_note(const struct parse_reader *reader, const struct hps_text_path *path, bool warning,
               const char *fmt, ...);
/* Record NO_MEMORY with the name of the file, and return it. */
hps_status parse_no_memory(const struct parse_reader *reader);
/* The value at `path` is invalid for the option: record the value and what was expected. `word`:
 * the text to suggest a word for; may be NULL. Returns as parse_fail with INVALID; NO_MEMORY for
 * `status` NO_MEMORY. */
hps_status parse_fail_value(const struct parse_reader *reader, const struct hps_text_path *path,
                            const struct hps_option *option, const char *word, hps_status status);
/* The same for a value that is no option itself. */
hps_status parse_fail_item(const struct parse_reader *reader, const struct hps_text_path *path,
                           const char *expected);
/* The JSON value as text for hps_option_set_text. It is borrowed from the value or in `scratch`.
 * NULL: not of the type of the option. */
const char *parse_scalar_text(const struct parse_reader *reader, const struct hps_text_path *path,
                              const struct hps_option *option, const json_t *value, char *scratch,
                              size_t size);
/* Parse the text of the reader as JSON; numbers become reals. `flags`: 0 or HPS_JSON_LAST_COUNTS.
 * NULL: *out_status says why, and the error is recorded. owner: the caller, json_decref. */
json_t *parse_json(const struct parse_reader *reader, size_t flags, hps_status *out_status);
/* Read a whole file of at most `bytes_max` bytes. Errors of hps_file_open_read; INVALID: longer;
 * NO_MEMORY. owner: the caller, hps_free. */
hps_status parse_read_file(const char *path, size_t bytes_max, char **out_text, size_t *out_size,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Read all options of a section from its object into `base`, the struct of the section, and mark
 * those given. Errors of single options are recorded in the notes. INVALID: no object; NO_MEMORY;
 * EXHAUSTED: no space for another error. */
hps_status parse_section(const struct parse_reader *reader, const struct hps_text_path *path,
                         json_t *object, enum hps_option_section section, void *base);
/* Read models[] of the file. Errors are recorded in the notes; NO_MEMORY; EXHAUSTED. parse_models.c
 */
hps_status parse_models(const struct parse_reader *reader, json_t *root);

#endif
