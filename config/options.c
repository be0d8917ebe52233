/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of options, and conversion of text to the fields that it describes. options_print.c
 * does the opposite. Any thread.
 */
#include "config/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/suggest.h"

/* ---- the table ------------------------------------------------------------------------------- */

#define ENUM_BEGIN(list) static const struct hps_option_value values_##list[] = {

#define VALUE(list, constant, number, word, aliases) {(word), (aliases), (number)},
#define ENUM_END(list) \
    {                  \
        NULL, NULL, 0  \
    }                  \
    }                  \
    ;
#include "config/enums.def"
#undef ENUM_BEGIN
#undef VALUE
#undef ENUM_END

#define values_none NULL

typedef struct hps_config struct_top;
typedef struct hps_config_volatile_db struct_volatile_db;
typedef struct hps_config_persistent_db struct_persistent_db;
typedef struct hps_config_update_source struct_update_source;
typedef struct hps_config_model struct_model;
typedef struct hps_config_server struct_server;
typedef struct hps_config_tls struct_tls;

#define FIELD_IS(section, field, type) \
    _Generic(((struct_##section *)0)->field, type : 1, default : 0)
#define CHECK_BOOL(section, field)    FIELD_IS(section, field, bool)
#define CHECK_U32(section, field)     FIELD_IS(section, field, uint32_t)
#define CHECK_U64(section, field)     FIELD_IS(section, field, uint64_t)
#define CHECK_BYTES(section, field)   FIELD_IS(section, field, uint64_t)
#define CHECK_F64(section, field)     FIELD_IS(section, field, double)
#define CHECK_ENUM(section, field)    (sizeof(((struct_##section *)0)->field) == sizeof(uint32_t))
#define CHECK_STRING(section, field)  FIELD_IS(section, field, char *)
#define CHECK_STRINGS(section, field) FIELD_IS(section, field, struct hps_strings)
#define CHECK_LISTEN(section, field)  FIELD_IS(section, field, struct hps_config_listener)
#define CHECK_LISTENS(section, field) FIELD_IS(section, field, struct hps_config_listeners)
#define CHECK_OBJECT(section, field)  1
#define CHECK_TABLES(section, field)  1

/* Assert that the type of each field is that of its option. */
#define OPTION(section, name, field, type, values, unit, def, min, max, flags, help) \
    _Static_assert(CHECK_##type(section, field), "type of " #section "." #field);
#include "config/options.def"
#undef OPTION

#define OFFSET_BOOL(section, field) offsetof(struct_##section, field)
#define OFFSET_U32                  OFFSET_BOOL
#define OFFSET_U64                  OFFSET_BOOL
#define OFFSET_BYTES                OFFSET_BOOL
#define OFFSET_F64                  OFFSET_BOOL
#define OFFSET_ENUM                 OFFSET_BOOL
#define OFFSET_STRING               OFFSET_BOOL
#define OFFSET_STRINGS              OFFSET_BOOL
#define OFFSET_LISTEN               OFFSET_BOOL
#define OFFSET_LISTENS              OFFSET_BOOL
#define OFFSET_OBJECT               OFFSET_BOOL
#define OFFSET_TABLES               OFFSET_BOOL

#define REQUIRED HPS_OPTION_REQUIRED
#define RELOAD   HPS_OPTION_RELOAD
#define OURS     HPS_OPTION_OURS
#define OPTIONAL HPS_OPTION_OPTIONAL
#define VERSION  HPS_OPTION_VERSION
#define LOAD     HPS_OPTION_LOAD

const struct hps_option hps_options[HPS_OPTION_COUNT] = {
#define OPTION(section, name, field, type, values, unit, def, min, max, flags, help) \
    {HPS_SECTION_##section,                                                          \
     HPS_OPTION_TYPE_##type,                                                         \
     #name,                                                                          \
     OFFSET_##type(section, field),                                                  \
     values_##values,                                                                \
     (unit),                                                                         \
     (def),                                                                          \
     (uint64_t)(min),                                                                \
     (uint64_t)(max),                                                                \
     (double)(min),                                                                  \
     (double)(max),                                                                  \
     (flags),                                                                        \
     (help)},
#include "config/options.def"
#undef OPTION
};

#define IN(section) (1u << HPS_SECTION_##section)

const struct hps_option_past hps_options_past[] = {
    {"fuse_embedding_table", IN(top) | IN(model), NULL},
    {"initialize_after_startup", IN(volatile_db) | IN(persistent_db), NULL},
    {"max_get_batch_size", IN(volatile_db) | IN(persistent_db), NULL},
    {"max_set_batch_size", IN(volatile_db) | IN(persistent_db), NULL},
    {"allocation_rate", IN(volatile_db), NULL},
    {"shared_memory_size", IN(volatile_db), NULL},
    {"shared_memory_name", IN(volatile_db), NULL},
    {"shared_memory_auto_remove", IN(volatile_db), NULL},
    {"receive_buffer_size", IN(update_source), NULL},
    {"max_commit_interval", IN(update_source), NULL},
    {"maxnum_catfeature_query_per_table_per_sample", IN(model), NULL},
    {"maxnum_des_feature_per_sample", IN(model), NULL},
    {"num_of_worker_buffer_in_pool", IN(model), NULL},
    {"num_of_refresher_buffer_in_pool", IN(model), NULL},
    {"cache_refresh_percentage_per_iteration", IN(model), NULL},
    {"refresh_delay", IN(model), NULL},
    {"refresh_interval", IN(model), NULL},
    {"use_hctr_cache_implementation", IN(model), NULL},
    {"thread_pool_size", IN(model), NULL},
    {"use_context_stream", IN(model), NULL},
    {"enable_pagelock", IN(model), NULL},
    {"fp8_quant", IN(model), NULL},
    {"dense_file", IN(model), NULL},
    {"network_file", IN(model), NULL},
    {"label_dim", IN(model), NULL},
    {"slot_num", IN(model), NULL},
    {"redis_layout", IN(volatile_db),
     "hpsd reads only its own layout; load the model files of HPS, see docs/redis.md"},
    {NULL, 0, NULL},
};

const char *hps_section_path(enum hps_option_section section)
{
    static const char *const paths[HPS_SECTION_COUNT] = {
        "", "volatile_db", "persistent_db", "update_source", "server", "server.tls", "models[]",
    };
    return paths[section];
}

void *hps_section_base(struct hps_config *config, enum hps_option_section section)
{
    void *const bases[HPS_SECTION_SINGLES] = {
        [HPS_SECTION_top] = config,
        [HPS_SECTION_volatile_db] = &config->volatile_db,
        [HPS_SECTION_persistent_db] = &config->persistent_db,
        [HPS_SECTION_update_source] = &config->update_source,
        [HPS_SECTION_server] = &config->server,
        [HPS_SECTION_tls] = &config->server.tls,
    };
    HPS_ASSERT(section < HPS_SECTION_SINGLES);
    return bases[section];
}

const void *hps_section_base_const(const struct hps_config *config, enum hps_option_section section)
{
    return hps_section_base((struct hps_config *)(uintptr_t)config, section);
}

/* ---- names ----------------------------------------------------------------------------------- */

const struct hps_option *hps_option_find(enum hps_option_section section, const char *name)
{
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        if (hps_options[i].section == section && strcmp(hps_options[i].name, name) == 0) {
            return &hps_options[i];
        }
    }
    return NULL;
}

const struct hps_option_past *hps_option_past_find(enum hps_option_section section,
                                                   const char *name)
{
    const struct hps_option_past *past = hps_options_past;
    while (past->name != NULL &&
           ((past->sections >> section & 1) == 0 || strcmp(past->name, name) != 0)) {
        past++;
    }
    return past->name != NULL ? past : NULL;
}

const char *hps_option_suggest(enum hps_option_section section, const char *name)
{
    struct hps_suggestion best = {0};
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        if (hps_options[i].section == section) {
            hps_suggest(&best, name, hps_options[i].name);
        }
    }
    return best.text;
}

const char *hps_option_suggest_word(const struct hps_option *option, const char *word)
{
    struct hps_suggestion best = {0};
    for (const struct hps_option_value *v = option->values; v != NULL && v->word != NULL; v++) {
        hps_suggest(&best, word, v->word);
    }
    return best.text;
}

bool hps_option_is_set(const struct hps_option_set *set, enum hps_option_id id)
{
    HPS_ASSERT(id < HPS_OPTION_COUNT);
    return (set->bits[id / 64] >> (id % 64) & 1) != 0;
}

void hps_option_mark(struct hps_option_set *set, const struct hps_option *option)
{
    HPS_ASSERT(option >= hps_options && option < hps_options + HPS_OPTION_COUNT);
    size_t id = (size_t)(option - hps_options);
    set->bits[id / 64] |= UINT64_C(1) << (id % 64);
}

/* ---- values from text ------------------------------------------------------------------------ */

static void *field_of(const struct hps_option *option, void *base)
{
    HPS_ASSERT(base != NULL);
    return (char *)base + option->offset;
}

static hps_status parse_bool(const char *text, bool *out_value)
{
    if (strcasecmp(text, "true") == 0) {
        *out_value = true;
        return HPS_OK;
    }
    if (strcasecmp(text, "false") == 0) {
        *out_value = false;
        return HPS_OK;
    }
    return HPS_INVALID;
}

/* A finite decimal number; rejects "inf", "nan" and "0x" of strtod. */
static hps_status parse_f64(const char *text, double *out_value)
{
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text)) {
        return HPS_INVALID;
    }
    char *end = NULL;
    double value = strtod(text, &end);
    if (*end != '\0') {
        return HPS_INVALID;
    }
    if (!isfinite(value)) {
        return HPS_RANGE;
    }
    *out_value = value;
    return HPS_OK;
}

/* Digits are read exactly; "4.0" and "5e3" are also integers. */
static hps_status parse_u64(const char *text, uint64_t *out_value)
{
    if (text[0] != '\0' && strspn(text, "0123456789") == strlen(text)) {
        errno = 0;
        unsigned long long value = strtoull(text, NULL, 10);
        if (errno == ERANGE) {
            return HPS_RANGE;
        }
        *out_value = value;
        return HPS_OK;
    }
    double value = 0;
    hps_status status = parse_f64(text, &value);
    if (status != HPS_OK) {
        return status;
    }
    if (value != floor(value)) {
        return HPS_INVALID;
    }
    if (value < 0 || value >= 18446744073709551616.0) {
        return HPS_RANGE;
    }
    *out_value = (uint64_t)value;
    return HPS_OK;
}

static bool unit_scale(const char *unit, double *out_scale)
{
    static const struct {
        const char *unit;
        double scale;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", 1024.0},
        {"MiB", 1048576.0},
        {"GiB", 1073741824.0},
        {"TiB", 1099511627776.0},
        {"KB", 1e3},
        {"MB", 1e6},
        {"GB", 1e9},
        {"TB", 1e12},
    };
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(unit, units[i].unit) == 0) {
            *out_scale = units[i].scale;
            return true;
        }
    }
    return false;
}

hps_status hps_bytes_parse(const char *text, uint64_t *out_bytes)
{
    hps_status status = parse_u64(text, out_bytes);
    if (status != HPS_INVALID) {
        return status;
    }
    char number[32];
    size_t n = strspn(text, "0123456789.");
    if (n == 0 || n >= sizeof(number)) {
        return HPS_INVALID;
    }
    memcpy(number, text, n);
    number[n] = '\0';
    const char *unit = text + n;
    while (*unit == ' ') {
        unit++;
    }
    double scale = 1;
    double value = 0;
    if (!unit_scale(unit, &scale) || parse_f64(number, &value) != HPS_OK) {
        return HPS_INVALID;
    }
    if (scale <= 1 && value != floor(value)) {
        return HPS_INVALID;
    }
    value = floor(value * scale);
    if (value >= 18446744073709551616.0) {
        return HPS_RANGE;
    }
    *out_bytes = (uint64_t)value;
    return HPS_OK;
}

/* Lower case; space and '-' become '_'. False: too long to be a word. */
static bool normalise_word(const char *text, char *out_word, size_t size)
{
    size_t n = strlen(text);
    if (n >= size) {
        return false;
    }
    for (size_t i = 0; i <= n; i++) {
        char c = text[i];
        out_word[i] = c == ' ' || c == '-' ? '_' : (char)tolower((unsigned char)c);
    }
    return true;
}

enum { WORD_BYTES_MAX = 64 };

/* Whether `word` is in the space-separated `list`. */
static bool word_in_list(const char *word, const char *list)
{
    size_t n = strlen(word);
    while (*list != '\0') {
        size_t length = strcspn(list, " ");
        if (length == n && memcmp(list, word, n) == 0) {
            return true;
        }
        list += length;
        list += strspn(list, " ");
    }
    return false;
}

static hps_status parse_enum(const struct hps_option *option, const char *text,
                             uint32_t *out_number)
{
    HPS_ASSERT(option->values != NULL);
    char word[WORD_BYTES_MAX];
    if (text[0] == '\0' || !normalise_word(text, word, sizeof(word))) {
        return HPS_INVALID;
    }
    for (const struct hps_option_value *v = option->values; v->word != NULL; v++) {
        if (strcmp(word, v->word) == 0 || word_in_list(word, v->aliases)) {
            *out_number = v->number;
            return HPS_OK;
        }
    }
    return HPS_INVALID;
}

void hps_strings_fini(struct hps_strings *strings)
{
    for (size_t i = 0; i < strings->n; i++) {
        hps_free(strings->items[i]);
    }
    hps_free(strings->items);
    strings->items = NULL;
    strings->n = 0;
}

hps_status hps_strings_append(struct hps_strings *strings, const char *text)
{
    HPS_ASSERT(strings->n == 0 || strings->items != NULL);
    char *copy = hps_strdup(text);
    if (copy == NULL) {
        return HPS_NO_MEMORY;
    }
    char **items = hps_realloc(strings->items, (strings->n + 1) * sizeof(*items));
    if (items == NULL) {
        hps_free(copy);
        return HPS_NO_MEMORY;
    }
    strings->items = items;
    strings->items[strings->n++] = copy;
    return HPS_OK;
}

hps_status hps_strings_copy(const struct hps_strings *strings, struct hps_strings *out_copy)
{
    struct hps_strings copy = {0};
    for (size_t i = 0; i < strings->n; i++) {
        if (hps_strings_append(&copy, strings->items[i]) != HPS_OK) {
            hps_strings_fini(&copy);
            return HPS_NO_MEMORY;
        }
    }
    *out_copy = copy;
    return HPS_OK;
}

static hps_status set_string(char **field, const char *text)
{
    char *copy = hps_strdup(text);
    if (copy == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_free(*field);
    *field = copy;
    return HPS_OK;
}

static hps_status set_strings(struct hps_strings *field, const char *text)
{
    struct hps_strings fresh = {0};
    if (text[0] != '\0') {
        hps_status status = hps_strings_append(&fresh, text);
        if (status != HPS_OK) {
            return status;
        }
    }
    hps_strings_fini(field);
    *field = fresh;
    return HPS_OK;
}

/* The default of listeners: one address; "": none. */
static hps_status set_listeners(struct hps_config_listeners *field, const char *text)
{
    hps_config_clear_listeners(field);
    return text[0] != '\0' ? hps_config_add_listener(field, text, false) : HPS_OK;
}

static hps_status set_integer(const struct hps_option *option, void *field, const char *text)
{
    HPS_ASSERT(option->min <= option->max);
    uint64_t value = 0;
    hps_status status = option->type == HPS_OPTION_TYPE_BYTES ? hps_bytes_parse(text, &value)
                                                              : parse_u64(text, &value);
    if (status != HPS_OK) {
        return status;
    }
    if (value < option->min || value > option->max) {
        return HPS_RANGE;
    }
    if (option->type == HPS_OPTION_TYPE_U32) {
        *(uint32_t *)field = (uint32_t)value;
    } else {
        *(uint64_t *)field = value;
    }
    return HPS_OK;
}

static hps_status set_field(const struct hps_option *option, void *field, const char *text)
{
    double real = 0;
    hps_status status = HPS_OK;
    switch (option->type) {
    case HPS_OPTION_TYPE_BOOL:
        return parse_bool(text, field);
    case HPS_OPTION_TYPE_U32:
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        return set_integer(option, field, text);
    case HPS_OPTION_TYPE_F64:
        status = parse_f64(text, &real);
        if (status == HPS_OK && (real < option->f_min || real > option->f_max)) {
            status = HPS_RANGE;
        }
        if (status == HPS_OK) {
            *(double *)field = real;
        }
        return status;
    case HPS_OPTION_TYPE_ENUM:
        return parse_enum(option, text, field);
    case HPS_OPTION_TYPE_STRING:
        return set_string(field, text);
    case HPS_OPTION_TYPE_STRINGS:
        return set_strings(field, text);
    case HPS_OPTION_TYPE_LISTEN:
        return set_string(&((struct hps_config_listener *)field)->address, text);
    case HPS_OPTION_TYPE_LISTENS:
        return set_listeners(field, text);
    default:
        return HPS_OK; /* no text form: parse.c reads these */
    }
}

hps_status hps_option_set_text(const struct hps_option *option, void *base, const char *text)
{
    return set_field(option, field_of(option, base), text);
}

hps_status hps_section_set_defaults(enum hps_option_section section, void *base)
{
    HPS_ASSERT(section < HPS_SECTION_COUNT);
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        if (hps_options[i].section != section) {
            continue;
        }
        hps_status status = hps_option_set_text(&hps_options[i], base, hps_options[i].def);
        HPS_ASSERT(status == HPS_OK || status == HPS_NO_MEMORY);
        if (status != HPS_OK) {
            return status;
        }
    }
    return HPS_OK;
}

void hps_section_fini(enum hps_option_section section, void *base)
{
    HPS_ASSERT(section < HPS_SECTION_COUNT);
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        if (option->section != section) {
            continue;
        }
        void *field = field_of(option, base);
        if (option->type == HPS_OPTION_TYPE_STRING) {
            hps_free(*(char **)field);
            *(char **)field = NULL;
        } else if (option->type == HPS_OPTION_TYPE_STRINGS) {
            hps_strings_fini(field);
        } else if (option->type == HPS_OPTION_TYPE_LISTEN) {
            hps_free(((struct hps_config_listener *)field)->address);
            ((struct hps_config_listener *)field)->address = NULL;
        } else if (option->type == HPS_OPTION_TYPE_LISTENS) {
            hps_config_clear_listeners(field);
        }
    }
}
