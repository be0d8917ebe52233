/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of options.def as data, and functions on single options: read a value from text, print
 * it, describe the expected values. Private to config/. Any thread; the table is constant.
 */
#ifndef HPS_CONFIG_OPTIONS_H
#define HPS_CONFIG_OPTIONS_H

#include "config/config.h"

enum hps_option_type {
    HPS_OPTION_TYPE_BOOL,
    HPS_OPTION_TYPE_U32,
    HPS_OPTION_TYPE_U64,
    HPS_OPTION_TYPE_BYTES,
    HPS_OPTION_TYPE_F64,
    HPS_OPTION_TYPE_ENUM,
    HPS_OPTION_TYPE_STRING,
    HPS_OPTION_TYPE_STRINGS,
    HPS_OPTION_TYPE_OBJECT,
    HPS_OPTION_TYPE_TABLES,
    HPS_OPTION_TYPE_LISTEN,
    HPS_OPTION_TYPE_LISTENS
};

enum hps_option_section {
    HPS_SECTION_top,
    HPS_SECTION_volatile_db,
    HPS_SECTION_persistent_db,
    HPS_SECTION_update_source,
    HPS_SECTION_server,
    HPS_SECTION_tls,
    HPS_SECTION_SINGLES, /* sections before this one exist once */
    HPS_SECTION_model = HPS_SECTION_SINGLES,
    HPS_SECTION_COUNT
};

enum {
    HPS_OPTION_REQUIRED = 1,
    HPS_OPTION_RELOAD = 2,
    HPS_OPTION_OURS = 4,
    HPS_OPTION_OPTIONAL = 8,
    HPS_OPTION_VERSION = 16,
    HPS_OPTION_LOAD = 32
};

/* A value of an ENUM option. */
struct hps_option_value {
    const char *word; /* NULL ends the list */
    const char *aliases;
    uint32_t number;
};

struct hps_option {
    enum hps_option_section section;
    enum hps_option_type type;
    const char *name;
    size_t offset; /* of the field in the struct of the section */
    const struct hps_option_value *values;
    const char *unit;
    const char *def;
    uint64_t min;
    uint64_t max;
    double f_min;
    double f_max;
    unsigned flags;
    const char *help;
};

extern const struct hps_option hps_options[HPS_OPTION_COUNT];

/* A key of HPS or of an earlier release that is no option. */
struct hps_option_past {
    const char *name;    /* NULL ends the table */
    unsigned sections;   /* bits 1 << HPS_SECTION_...: sections where it may be */
    const char *instead; /* an error with this text; NULL: accepted and ignored */
};

extern const struct hps_option_past hps_options_past[];

/* Names as in the file: "", "volatile_db", ..., "models[]", "server", "server.tls". */
const char *hps_section_path(enum hps_option_section section);
/* The struct with the options of `section`; it begins with its struct hps_option_set. Not for
 * models, which have one struct each. */
void *hps_section_base(struct hps_config *config, enum hps_option_section section);
const void *hps_section_base_const(const struct hps_config *config,
                                   enum hps_option_section section);

const struct hps_option *hps_option_find(enum hps_option_section section, const char *name);
/* NULL: no such key. */
const struct hps_option_past *hps_option_past_find(enum hps_option_section section,
                                                   const char *name);
/* The nearest name of the section, if it is near enough to suggest; else NULL. */
const char *hps_option_suggest(enum hps_option_section section, const char *name);
/* The same for the words of an ENUM option. */
const char *hps_option_suggest_word(const struct hps_option *option, const char *word);

void hps_option_mark(struct hps_option_set *set, const struct hps_option *option);

/* Set the field of a scalar option from text, as written in the file ("4GiB", "true", "redis"). A
 * STRINGS option becomes a list of this one string; empty text gives the empty list.
 *
 * error   INVALID: no such value; RANGE: outside min and max; NO_MEMORY
 * state   unchanged on error
 */
hps_status hps_option_set_text(const struct hps_option *option, void *base, const char *text)
    HPS_MUST_CHECK;
/* Set every option of the section to its default. After an error some options are not set;
 * hps_section_fini may be called. */
hps_status hps_section_set_defaults(enum hps_option_section section, void *base) HPS_MUST_CHECK;
/* Free the strings and lists of strings of the section. */
void hps_section_fini(enum hps_option_section section, void *base);

/* Append "an integer from 1 to 65536 (ms)" and so on. */
void hps_option_expected(const struct hps_option *option, struct hps_buf *buf);
/* Append the value as JSON. */
void hps_option_print(const struct hps_option *option, const void *base, struct hps_buf *buf);
/* The same, but for a secret only whether it is set. */
void hps_option_print_public(const struct hps_option *option, const void *base,
                             struct hps_buf *buf);
/* Whether the option has a value, unlike a block of options. */
bool hps_option_has_value(const struct hps_option *option);

/* Parse a size: "32MiB", "1.5 GB", "4096". INVALID, RANGE. */
hps_status hps_bytes_parse(const char *text, uint64_t *out_bytes) HPS_MUST_CHECK;

/* True if there is no space for another note or `notes` is NULL; the note then counts as dropped.
 * Lets callers avoid the cost of formatting it. */
bool hps_notes_drop(struct hps_notes *notes);
/* Append `err` as an error, and copy it to *first if it is the first. Returns OK, so that other
 * checks continue, or NO_MEMORY. */
hps_status hps_notes_add_error(struct hps_notes *notes, const struct hps_error *err,
                               struct hps_error *first) HPS_MUST_CHECK;
/* Append a note, unless hps_notes_drop says that there is no space. */
hps_status hps_notes_add(struct hps_notes *notes, bool warning, const char *fmt, ...)
    HPS_PRINTF(3, 4) HPS_MUST_CHECK;

/* A new config with the defaults of all options. */
hps_status hps_config_new(const char *file, struct hps_config **out_config, struct hps_error *err)
    HPS_MUST_CHECK;
/* Append a model with its defaults, or a table to a model. The results are valid until the next
 * append. */
hps_status hps_config_add_model(struct hps_config *config, struct hps_config_model **out_model)
    HPS_MUST_CHECK;
hps_status hps_config_add_table(struct hps_config_model *model, struct hps_config_table **out_table)
    HPS_MUST_CHECK;
hps_status hps_config_add_listener(struct hps_config_listeners *listeners, const char *address,
                                   bool plaintext) HPS_MUST_CHECK;
/* Assert the invariants of a finished configuration. */
void hps_config_sane(const struct hps_config *config);
void hps_config_clear_listeners(struct hps_config_listeners *listeners);
/* Check that addresses, TLS and administrators fit together, and that no address is used twice.
 * INVALID names the option. Main thread. */
hps_status hps_config_check_listeners(const struct hps_config *config, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
