/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of options.def as a constant table, and functions on single options: read a value
 * from text, print it, describe the values that it accepts. Private to config/. Any thread.
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
    HPS_SECTION_SINGLES, /* number of sections that a file has only once */
    HPS_SECTION_model = HPS_SECTION_SINGLES,
    HPS_SECTION_COUNT
};

/* Flags of an option; options.def explains them. */
enum {
    HPS_OPTION_REQUIRED = 1,
    HPS_OPTION_RELOAD = 2,
    HPS_OPTION_OURS = 4,
    HPS_OPTION_OPTIONAL = 8,
    HPS_OPTION_VERSION = 16,
    HPS_OPTION_LOAD = 32
};

/* A word that an option accepts. */
struct hps_option_value {
    const char *word; /* NULL ends the list */
    const char *aliases;
    uint32_t number;
};

struct hps_option {
    enum hps_option_section section;
    enum hps_option_type type;
    const char *name;
    size_t offset; /* of the option's field in the struct of its section */
    const struct hps_option_value
        *values; /* the accepted words; NULL: the option does not accept words */
    const char *unit;
    const char *def;
    uint64_t min; /* of integers and sizes */
    uint64_t max;
    double f_min; /* of F64 options */
    double f_max;
    unsigned flags;
    const char *help;
};

extern const struct hps_option hps_options[HPS_OPTION_COUNT];

/* A key of HPS, or of an earlier release of hpsd, that is not an option now. */
struct hps_option_past {
    const char *name;    /* NULL ends the table */
    unsigned sections;   /* sections that had the key: bits 1 << HPS_SECTION_... */
    const char *instead; /* text of the error for the key; NULL: the key is ignored */
};

extern const struct hps_option_past hps_options_past[];

/* The path of a section in the file: "", "volatile_db", ..., "models[]", "server", "server.tls". */
const char *hps_section_path(enum hps_option_section section);
/* The struct in `config` that has the options of `section`. Its first member is a struct
 * hps_option_set. Not for HPS_SECTION_model, because each model has its own struct. */
void *hps_section_base(struct hps_config *config, enum hps_option_section section);
const void *hps_section_base_const(const struct hps_config *config,
                                   enum hps_option_section section);

/* The option with this name; NULL if the section does not have it. */
const struct hps_option *hps_option_find(enum hps_option_section section, const char *name);
/* The past key with this name; NULL if the section never had it. */
const struct hps_option_past *hps_option_past_find(enum hps_option_section section,
                                                   const char *name);
/* The name of the option in the section that is most similar to the unknown `name`. NULL: no option
 * is similar enough to suggest. */
const char *hps_option_suggest(enum hps_option_section section, const char *name);
/* Like hps_option_suggest, for the words of an ENUM option. */
const char *hps_option_suggest_word(const struct hps_option *option, const char *word);

/* Add the option to the set. */
void hps_option_mark(struct hps_option_set *set, const struct hps_option *option);

/* Set the field of a scalar option in `base`, the struct of its section, from text as in the file
 * ("4GiB", "true", "redis"). A STRINGS option becomes a list of this one string; if the text is
 * empty, an empty list. The field is unchanged on error.
 *
 * error   INVALID: the option does not accept the value; RANGE: the value is outside min and max;
 *         NO_MEMORY
 */
hps_status hps_option_set_text(const struct hps_option *option, void *base, const char *text)
    HPS_MUST_CHECK;
/* Set every option of the section in `base` to its default. After an error some options are not
 * set; hps_section_fini may still be called. NO_MEMORY: no memory for a string. */
hps_status hps_section_set_defaults(enum hps_option_section section, void *base) HPS_MUST_CHECK;
/* Free the strings and lists of strings in `base`, the struct of the section. */
void hps_section_fini(enum hps_option_section section, void *base);

/* Append a description of the values that the option accepts: "an integer from 1 to 65536 (ms)". */
void hps_option_expected(const struct hps_option *option, struct hps_buf *buf);
/* Append the value of the option in `base`, the struct of its section, as JSON. */
void hps_option_print(const struct hps_option *option, const void *base, struct hps_buf *buf);
/* Like hps_option_print, but without secrets. A password that is set is printed as "***". In
 * update_source.properties, a value that may be secret (hps_secrets_is_property) is replaced by
 * at most four '*'. */
void hps_option_print_public(const struct hps_option *option, const void *base,
                             struct hps_buf *buf);
/* Whether the option has a value. False for a block of options. */
bool hps_option_has_value(const struct hps_option *option);

/* Parse a size: "32MiB", "1.5 GB", "4096".
 *
 * error   INVALID: not a size; RANGE: above UINT64_MAX
 */
hps_status hps_bytes_parse(const char *text, uint64_t *out_bytes) HPS_MUST_CHECK;

/* Whether the next note that is not an error would be dropped, because `notes` is NULL or full.
 * Counts that note as dropped if `notes` is full. Call this to avoid formatting a note in vain. */
bool hps_notes_drop(struct hps_notes *notes);
/* Append `err` as an error; it is dropped and counted if `notes` has HPS_NOTES_MAX errors. Copies
 * `err` to *first if *first has no error yet. Returns OK, so that other checks continue, or
 * NO_MEMORY. */
hps_status hps_notes_add_error(struct hps_notes *notes, const struct hps_error *err,
                               struct hps_error *first) HPS_MUST_CHECK;
/* Append a note that is not an error. If hps_notes_drop returns true, the note is dropped and the
 * result is OK. NO_MEMORY: no memory for the note. */
hps_status hps_notes_add(struct hps_notes *notes, enum hps_note_kind kind, const char *fmt, ...)
    HPS_PRINTF(3, 4) HPS_MUST_CHECK;

/* Create a configuration in which all options have their defaults. `file` is the file name for
 * messages. */
hps_status hps_config_new(const char *file, struct hps_config **out_config, struct hps_error *err)
    HPS_MUST_CHECK;
/* Append a model with the defaults of its options. *out_model is valid until the next model is
 * appended. */
hps_status hps_config_add_model(struct hps_config *config, struct hps_config_model **out_model)
    HPS_MUST_CHECK;
/* Append a table to a model. *out_table is valid until the next table is appended. */
hps_status hps_config_add_table(struct hps_config_model *model, struct hps_config_table **out_table)
    HPS_MUST_CHECK;
hps_status hps_config_add_listener(struct hps_config_listeners *listeners, const char *address,
                                   bool plaintext) HPS_MUST_CHECK;
/* Assert the invariants of a finished configuration. */
void hps_config_sane(const struct hps_config *config);
void hps_config_clear_listeners(struct hps_config_listeners *listeners);
/* Check the listeners: addresses beyond loopback need TLS or `plaintext`, an admin listener on TCP
 * needs a configured administrator, and no address may be used twice. INVALID: `err` names the
 * option. Main thread. */
hps_status hps_config_check_listeners(const struct hps_config *config, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
