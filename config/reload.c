/* SPDX-License-Identifier: Apache-2.0
 *
 * Reload: finds the differences of two configurations, and applies the reloadable ones to a running
 * daemon. Main thread.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "config/options.h"

enum { VALUE_BYTES_MAX = 16 * 1024 * 1024 };

/* The same section of two configurations. Each struct begins with its set of options. */
struct pair {
    enum hps_option_section section;
    void *before;
    void *after;
};

/* Not for models. */
static struct pair pair_of(enum hps_option_section section, struct hps_config *before,
                           struct hps_config *after)
{
    return (struct pair){section, hps_section_base(before, section),
                         hps_section_base(after, section)};
}

/* Whether the option is compared. Options that are not set in either file have the same default and
 * are skipped. Exceptions: defaults that follow from other options, and the log level, which can be
 * changed by other means. */
static bool is_compared(const struct hps_option *option, const struct pair *pair)
{
    enum hps_option_id id = (enum hps_option_id)(option - hps_options);
    if (option->section != pair->section || !hps_option_has_value(option)) {
        return false;
    }
    switch (id) {
    case HPS_OPTION_server_model_roots:
    case HPS_OPTION_server_log_level:
    case HPS_OPTION_server_admin_listen:
    case HPS_OPTION_volatile_db_type:
    case HPS_OPTION_persistent_db_path:
        return true;
    default:
        return hps_option_is_set(pair->before, id) || hps_option_is_set(pair->after, id);
    }
}

static const char *string_of(const struct hps_option *option, const void *base)
{
    HPS_ASSERT(option->type == HPS_OPTION_TYPE_STRING);
    return *(char *const *)(const void *)((const char *)base + option->offset);
}

/* A reload can replace a file (token, certificate) by another, but cannot add or remove one: the
 * listeners were opened with or without it. That needs a restart, except for OPTIONAL options. */
static bool is_reloadable(const struct hps_option *option, const struct pair *pair)
{
    HPS_ASSERT(hps_option_has_value(option) || (option->flags & HPS_OPTION_RELOAD) == 0);
    if ((option->flags & HPS_OPTION_RELOAD) == 0) {
        return false;
    }
    return option->type != HPS_OPTION_TYPE_STRING || (option->flags & HPS_OPTION_OPTIONAL) != 0 ||
           (string_of(option, pair->before)[0] == '\0') ==
               (string_of(option, pair->after)[0] == '\0');
}

/* ---- differences ----------------------------------------------------------------------------- */

struct diff {
    void (*fn)(void *ctx, const struct hps_config_change *change);
    void *ctx;
    struct hps_buf before; /* one value at a time */
    struct hps_buf after;
};

static void cut(char *out_text, size_t size, const struct hps_buf *buf)
{
    HPS_ASSERT(size > 0);
    (void)snprintf(out_text, size, "%.*s", buf->size > 1024 ? 1024 : (int)buf->size,
                   buf->size == 0 ? "" : (const char *)buf->data);
}

static hps_status print_both(struct diff *diff, const struct hps_option *option,
                             const struct pair *pair,
                             void (*print)(const struct hps_option *option, const void *base,
                                           struct hps_buf *buf))
{
    hps_buf_clear(&diff->before);
    hps_buf_clear(&diff->after);
    print(option, pair->before, &diff->before);
    print(option, pair->after, &diff->after);
    return diff->before.status != HPS_OK ? diff->before.status : diff->after.status;
}

static hps_status diff_option(struct diff *diff, const struct hps_option *option,
                              const char *prefix, const struct pair *pair)
{
    HPS_ASSERT(hps_option_has_value(option));
    hps_status status = print_both(diff, option, pair, hps_option_print);
    if (status != HPS_OK || (diff->before.size == diff->after.size &&
                             memcmp(diff->before.data, diff->after.data, diff->before.size) == 0)) {
        return status;
    }
    status = print_both(diff, option, pair, hps_option_print_public);
    if (status != HPS_OK) {
        return status;
    }
    struct hps_config_change change = {
        .reloadable = is_reloadable(option, pair),
        .kept = (option->flags & (HPS_OPTION_VERSION | HPS_OPTION_LOAD)) != 0};
    (void)snprintf(change.path, sizeof(change.path), "%s%s%s", prefix, prefix[0] == '\0' ? "" : ".",
                   option->name);
    cut(change.before, sizeof(change.before), &diff->before);
    cut(change.after, sizeof(change.after), &diff->after);
    diff->fn(diff->ctx, &change);
    return HPS_OK;
}

static hps_status diff_section(struct diff *diff, const char *prefix, const struct pair *pair)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < HPS_OPTION_COUNT && status == HPS_OK; i++) {
        if (is_compared(&hps_options[i], pair)) {
            status = diff_option(diff, &hps_options[i], prefix, pair);
        }
    }
    return status;
}

static void diff_missing_models(struct diff *diff, const struct hps_config *here,
                                const struct hps_config *there, bool added)
{
    for (size_t i = 0; i < here->n_models; i++) {
        const char *name = here->models[i].name;
        if (hps_config_model_find(there, name) == NULL) {
            struct hps_config_change change = {0};
            (void)snprintf(change.path, sizeof(change.path), "models[%s]", name);
            (void)snprintf(added ? change.after : change.before, sizeof(change.after), "%s",
                           added ? "added" : "removed");
            diff->fn(diff->ctx, &change);
        }
    }
}

/* The entry of that name, writable; NULL: none. */
static struct hps_config_model *model_find(struct hps_config *config, const char *name)
{
    return (struct hps_config_model *)(uintptr_t)hps_config_model_find(config, name);
}

static hps_status diff_models(struct diff *diff, struct hps_config *before,
                              struct hps_config *after)
{
    hps_status status = HPS_OK;
    for (size_t i = 0; i < before->n_models && status == HPS_OK; i++) {
        struct hps_config_model *old = &before->models[i];
        struct hps_config_model *fresh = model_find(after, old->name);
        char prefix[160];
        (void)snprintf(prefix, sizeof(prefix), "models[%s]", old->name);
        if (fresh != NULL) {
            const struct pair pair = {HPS_SECTION_model, old, fresh};
            status = diff_section(diff, prefix, &pair);
        }
    }
    diff_missing_models(diff, before, after, false);
    diff_missing_models(diff, after, before, true);
    return status;
}

hps_status hps_config_diff(const struct hps_config *before, const struct hps_config *after,
                           void (*fn)(void *ctx, const struct hps_config_change *change), void *ctx)
{
    HPS_ASSERT(fn != NULL);
    struct hps_config *a = (struct hps_config *)(uintptr_t)before; /* only read */
    struct hps_config *b = (struct hps_config *)(uintptr_t)after;
    struct diff diff = {.fn = fn, .ctx = ctx};
    hps_buf_init(&diff.before, VALUE_BYTES_MAX);
    hps_buf_init(&diff.after, VALUE_BYTES_MAX);
    hps_status status = HPS_OK;
    for (int i = 0; i < HPS_SECTION_SINGLES && status == HPS_OK; i++) {
        const struct pair pair = pair_of((enum hps_option_section)i, a, b);
        status = diff_section(&diff, hps_section_path(pair.section), &pair);
    }
    if (status == HPS_OK) {
        status = diff_models(&diff, a, b);
    }
    hps_buf_fini(&diff.before);
    hps_buf_fini(&diff.after);
    return status;
}

hps_status hps_config_diff_entry(const struct hps_config_model *before,
                                 const struct hps_config_model *after,
                                 void (*fn)(void *ctx, const struct hps_config_change *change),
                                 void *ctx)
{
    struct diff diff = {.fn = fn, .ctx = ctx};
    const struct pair pair = {HPS_SECTION_model, (void *)(uintptr_t)before, /* only read */
                              (void *)(uintptr_t)after};
    hps_buf_init(&diff.before, VALUE_BYTES_MAX);
    hps_buf_init(&diff.after, VALUE_BYTES_MAX);
    hps_status status = diff_section(&diff, "", &pair);
    hps_buf_fini(&diff.before);
    hps_buf_fini(&diff.after);
    return status;
}

/* ---- applying changes ------------------------------------------------------------------------ */

static size_t field_size(const struct hps_option *option)
{
    switch (option->type) {
    case HPS_OPTION_TYPE_BOOL:
        return sizeof(bool);
    case HPS_OPTION_TYPE_U32:
    case HPS_OPTION_TYPE_ENUM:
        return sizeof(uint32_t);
    case HPS_OPTION_TYPE_U64:
    case HPS_OPTION_TYPE_BYTES:
        return sizeof(uint64_t);
    case HPS_OPTION_TYPE_F64:
        return sizeof(double);
    case HPS_OPTION_TYPE_STRING:
        return sizeof(char *);
    default:
        HPS_ASSERT(option->type == HPS_OPTION_TYPE_STRINGS);
        return sizeof(struct hps_strings);
    }
}

static void exchange_bytes(void *a, void *b, size_t size)
{
    char spare[sizeof(struct hps_strings)];
    HPS_ASSERT(size <= sizeof(spare));
    memcpy(spare, a, size);
    memcpy(a, b, size);
    memcpy(b, spare, size);
}

static void exchange_mark(struct hps_option_set *before, struct hps_option_set *after, size_t id)
{
    HPS_ASSERT(id < HPS_OPTION_COUNT);
    uint64_t different = (before->bits[id / 64] ^ after->bits[id / 64]) & UINT64_C(1) << (id % 64);
    before->bits[id / 64] ^= different;
    after->bits[id / 64] ^= different;
}

static void exchange_section(const struct pair *pair)
{
    for (size_t i = 0; i < HPS_OPTION_COUNT; i++) {
        const struct hps_option *option = &hps_options[i];
        if (is_compared(option, pair) && is_reloadable(option, pair)) {
            exchange_bytes((char *)pair->before + option->offset,
                           (char *)pair->after + option->offset, field_size(option));
            exchange_mark(pair->before, pair->after, i);
        }
    }
}

void hps_config_exchange(struct hps_config *running, struct hps_config *next)
{
    HPS_ASSERT(running != next);
    for (int i = 0; i < HPS_SECTION_SINGLES; i++) {
        const struct pair pair = pair_of((enum hps_option_section)i, running, next);
        exchange_section(&pair);
    }
    for (size_t i = 0; i < running->n_models; i++) {
        struct hps_config_model *model = model_find(next, running->models[i].name);
        if (model != NULL) {
            const struct pair pair = {HPS_SECTION_model, &running->models[i], model};
            exchange_section(&pair);
        }
    }
}
