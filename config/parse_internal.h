/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files share that read the configuration: parse.c, parse_models.c and parse_access.c.
 * Main thread.
 */
#ifndef HPS_CONFIG_PARSE_INTERNAL_H
#define HPS_CONFIG_PARSE_INTERNAL_H

#include "config/json.h"
#include "config/options.h"
#include "config/text.h"

enum { GOT_CHARS = 64 }; /* of a value, in a message */

struct parse_reader {
    struct hps_text source;
    struct hps_config *config;
    struct hps_notes *notes;
    struct hps_error *err; /* the first error; never NULL */
};

/* Whether to read on after an error, which is in the notes. Not OK: NO_MEMORY, or EXHAUSTED, as
 * there is no room for another error. */
static inline hps_status parse_go_on(hps_status status)
{
    return status == HPS_INVALID || status == HPS_UNIMPLEMENTED ? HPS_OK : status;
}

/* "FILE:LINE: PATH: " and the text, as an error. Returns `status`, EXHAUSTED if this was the last
 * error for which there is room, or NO_MEMORY. */
hps_status HPS_PRINTF(4, 5)
    parse_fail(const struct parse_reader *reader, const struct hps_text_path *path,
               hps_status status, const char *fmt, ...);
/* The same as a note, which goes to the log. */
hps_status HPS_PRINTF(4, 5)
    parse_note(const struct parse_reader *reader, const struct hps_text_path *path, bool warning,
               const char *fmt, ...);
/* NO_MEMORY, with the name of the file. */
hps_status parse_no_memory(const struct parse_reader *reader);
/* The value at `path` is not one of the option: what it is, and what was expected. INVALID. */
hps_status parse_fail_value(const struct parse_reader *reader, const struct hps_text_path *path,
                            const struct hps_option *option, const char *word, hps_status status);
/* The same of what is no option by itself. INVALID. */
hps_status parse_fail_item(const struct parse_reader *reader, const struct hps_text_path *path,
                           const char *expected);
/* The JSON value as the text that hps_option_set_text reads, borrowed from the value or in
 * `scratch`; NULL: not of the type of the option. */
const char *parse_scalar_text(const struct parse_reader *reader, const struct hps_text_path *path,
                              const struct hps_option *option, const json_t *value, char *scratch,
                              size_t size);
/* The text of the reader as JSON: numbers are reals. `flags`: 0, or HPS_JSON_LAST_COUNTS. NULL:
 * *out_status says why, and it is in the reader's error. owner: the caller, json_decref. */
json_t *parse_json(const struct parse_reader *reader, size_t flags, hps_status *out_status);
/* A whole file of at most `bytes_max` bytes. Errors of hps_file_open_read; INVALID: longer;
 * NO_MEMORY. owner: the caller, hps_free. */
hps_status parse_read_file(const char *path, size_t bytes_max, char **out_text, size_t *out_size,
                           struct hps_error *err) HPS_MUST_CHECK;
/* All options of a section from its object into `base`, the struct of the section, whose set says
 * which were there. Errors of single options are in the notes. INVALID: no object; NO_MEMORY. */
hps_status parse_section(const struct parse_reader *reader, const struct hps_text_path *path,
                         json_t *object, enum hps_option_section section, void *base);
/* models[] of the file. Errors are in the notes; NO_MEMORY. parse_models.c */
hps_status parse_models(const struct parse_reader *reader, json_t *root);

#endif
