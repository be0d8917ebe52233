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

enum { GOT_CHARS = 64 }; /* maximum size of a value in a message, with its NUL */

/* A configuration that is being parsed. */
struct parse_reader {
    struct hps_text source;
    struct hps_config *config;
    struct hps_notes *notes; /* may be NULL */
    struct hps_error *err;   /* gets the first error; never NULL */
};

/* The status to continue with after a value was parsed with `status`. INVALID and UNIMPLEMENTED are
 * recorded in the notes, so they become OK and parsing continues. Any other status is returned
 * unchanged: OK, NO_MEMORY, or EXHAUSTED if the notes are full. */
static inline hps_status parse_go_on(hps_status status)
{
    return status == HPS_INVALID || status == HPS_UNIMPLEMENTED ? HPS_OK : status;
}

/* Record the error "FILE:LINE: PATH: " followed by the text. Returns `status`; EXHAUSTED if the
 * notes have no space for further errors, or are NULL; or NO_MEMORY. */
hps_status HPS_PRINTF(4, 5)
    parse_fail(const struct parse_reader *reader, const struct hps_text_path *path,
               hps_status status, const char *fmt, ...);
/* Record a warning or another note, in the form of parse_fail. Returns OK or NO_MEMORY. */
hps_status HPS_PRINTF(4, 5)
    parse_note(const struct parse_reader *reader, const struct hps_text_path *path,
               enum hps_note_kind kind, const char *fmt, ...);
/* Set the error NO_MEMORY with the name of the file. Returns NO_MEMORY. */
hps_status parse_no_memory(const struct parse_reader *reader);
/* Record that the value at `path` is invalid for the option. The message shows the value and the
 * accepted values. If `word` is not NULL, the message also suggests the accepted word that is most
 * similar to `word`. `status` is the result of hps_option_set_text. Returns NO_MEMORY if `status`
 * is NO_MEMORY, else what parse_fail returns for INVALID. */
hps_status parse_fail_value(const struct parse_reader *reader, const struct hps_text_path *path,
                            const struct hps_option *option, const char *word, hps_status status);
/* Record that a part of an option's value, at `path`, is invalid. Returns what parse_fail returns
 * for INVALID. */
hps_status parse_fail_item(const struct parse_reader *reader, const struct hps_text_path *path,
                           const char *expected);
/* Convert a JSON value to text for hps_option_set_text. The result points into the value or to
 * scratch[size]. NULL: the value does not have the type of the option. */
const char *parse_scalar_text(const struct parse_reader *reader, const struct hps_text_path *path,
                              const struct hps_option *option, const json_t *value, char *scratch,
                              size_t size);
/* Parse the text of the reader as JSON; all numbers become reals. `flags` is 0 or
 * HPS_JSON_LAST_COUNTS. NULL: the error is recorded, and *out_status is its status.
 *
 * owner   the result: the caller, json_decref
 */
json_t *parse_json(const struct parse_reader *reader, size_t flags, hps_status *out_status);
/* Read a whole file of at most `bytes_max` bytes.
 *
 * error   the errors of hps_file_open_read; INVALID: the file is larger; NO_MEMORY
 * owner   *out_text: the caller, hps_free
 */
hps_status parse_read_file(const char *path, size_t bytes_max, char **out_text, size_t *out_size,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Read all options of a section from its JSON object into `base`, the struct of the section, and
 * mark the options that the object contains as set. Errors of single options are recorded in the
 * notes.
 *
 * error   INVALID: `object` is not an object; NO_MEMORY; EXHAUSTED: the notes are full
 */
hps_status parse_section(const struct parse_reader *reader, const struct hps_text_path *path,
                         json_t *object, enum hps_option_section section, void *base);
/* Read models[] of the file (parse_models.c). Errors are recorded in the notes.
 *
 * error   NO_MEMORY; EXHAUSTED: the notes are full
 */
hps_status parse_models(const struct parse_reader *reader, json_t *root);

#endif
