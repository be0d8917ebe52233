/* SPDX-License-Identifier: Apache-2.0
 *
 * The model set: an immutable snapshot that readers reach through one pointer inside an epoch. A
 * writer changes a copy, stores the pointer, and waits until no reader can hold the old snapshot.
 * That takes microseconds: readers hold it only while they find and pin a version, which takes the
 * same time for any number of models. The old snapshot then becomes the spare for the next copy. So
 * only hps_models_add allocates snapshots.
 */
#include "cache/version/models.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/epoch.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/index_set.h"
#include "base/lock.h"
#include "base/text.h"

struct model_entry {
    struct hps_version *version;
    bool active;
    uint32_t next; /* index + 1 of the next entry of this model; 0: none */
};

struct snapshot {
    uint32_t n;
    uint32_t n_max;
    struct hps_index_set models; /* first entry by model name; its places follow the entries */
    struct model_entry entries[];
};

/* A model that is expected to get its first version. */
struct expected {
    struct expected *next;
    char *model;
    char why[640];
};

/* The order of a model's tables, the same for all of its versions. */
struct order {
    struct order *next;
    char *model;
    char **names; /* [n] */
    uint32_t n;
};

struct hps_models {
    struct hps_lock lock; /* of the next two; lookups that find no version or table take it */
    struct expected *expected;
    struct order *orders;
    _Atomic(struct snapshot *) current;
    struct snapshot *spare; /* for writers; as large as the current one */
    struct hps_epoch *epoch;
};

static struct snapshot *snapshot_new(uint32_t n_max)
{
    uint64_t n_places = hps_index_set_places(n_max);
    struct snapshot *snapshot =
        hps_calloc(1, sizeof(*snapshot) + n_max * sizeof(snapshot->entries[0]) +
                          n_places * sizeof(*snapshot->models.places));
    if (snapshot != NULL) {
        snapshot->n_max = n_max;
        hps_index_set_init(&snapshot->models, (uint32_t *)&snapshot->entries[n_max], n_places);
    }
    return snapshot;
}

struct model_name {
    const struct snapshot *snapshot;
    const char *text;
    size_t size;
};

static bool has_name(const void *ctx, uint32_t i)
{
    const struct model_name *wanted = ctx;
    return hps_text_is(wanted->snapshot->entries[i].version->model, wanted->text, wanted->size);
}

/* The place of the first entry of that model. Only the operator loads models, so clients cannot
 * cause collisions. */
static uint32_t *snapshot_place(const struct snapshot *snapshot, const char *model, size_t size)
{
    const struct model_name wanted = {snapshot, model, size};
    uint64_t hash = hps_hash_bytes(model, size, 0);
    return hps_index_set_find(&snapshot->models, hash, has_name, &wanted);
}

static void snapshot_index(struct snapshot *snapshot)
{
    HPS_ASSERT(snapshot->n <= snapshot->n_max);
    hps_index_set_init(&snapshot->models, snapshot->models.places, snapshot->models.mask + 1);
    for (uint32_t i = 0; i < snapshot->n; i++) {
        const char *model = snapshot->entries[i].version->model;
        uint32_t *place = snapshot_place(snapshot, model, strlen(model));
        snapshot->entries[i].next = *place;
        *place = i + 1;
    }
}

struct hps_models *hps_models_new(void)
{
    struct hps_models *models = hps_calloc(1, sizeof(*models));
    struct snapshot *empty = snapshot_new(0);
    struct snapshot *spare = snapshot_new(0);
    struct hps_epoch *epoch = hps_epoch_new();
    if (models == NULL || empty == NULL || spare == NULL || epoch == NULL) {
        hps_epoch_free(epoch);
        hps_free(empty);
        hps_free(spare);
        hps_free(models);
        return NULL;
    }
    hps_lock_init(&models->lock, HPS_LOCK_MODELS);
    models->epoch = epoch;
    models->spare = spare;
    atomic_store(&models->current, empty);
    return models;
}

/* Remove and free the entry at `at`. */
static void expected_free(struct hps_models *models, struct expected **at)
{
    struct expected *one = *at;
    HPS_ASSERT(models->expected != NULL);
    *at = one->next;
    hps_free(one->model);
    hps_free(one);
}

/* ---- orders of tables ------------------------------------------------------------------------ */

static void order_free(struct order *order)
{
    for (uint32_t i = 0; order != NULL && order->names != NULL && i < order->n; i++) {
        hps_free(order->names[i]);
    }
    if (order != NULL) {
        hps_free(order->names);
        hps_free(order->model);
        hps_free(order);
    }
}

static struct order *order_new(const char *model, const char *const *names, uint32_t n)
{
    struct order *order = hps_calloc(1, sizeof(*order));
    bool good = order != NULL;
    if (good) {
        order->n = n;
        order->model = hps_strdup(model);
        order->names = hps_calloc(n, sizeof(*order->names));
        good = order->model != NULL && order->names != NULL;
    }
    for (uint32_t i = 0; good && i < n; i++) {
        order->names[i] = hps_strdup(names[i]);
        good = order->names[i] != NULL;
    }
    if (!good) {
        order_free(order);
        return NULL;
    }
    return order;
}

/* Unlink the model's order; *out_order NULL: it has none. The caller holds the lock, or frees the
 * set. */
static void order_take(struct hps_models *models, const char *model, struct order **out_order)
{
    struct order **at = &models->orders;
    while (*at != NULL && strcmp((*at)->model, model) != 0) {
        at = &(*at)->next;
    }
    *out_order = *at;
    *at = *at == NULL ? NULL : (*at)->next;
}

hps_status hps_models_set_order(struct hps_models *models, const char *model,
                                const char *const *names, uint32_t n)
{
    struct order *next = n == 0 ? NULL : order_new(model, names, n);
    struct order *old;
    if (n > 0 && next == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_lock_acquire(&models->lock);
    order_take(models, model, &old);
    if (next != NULL) {
        next->next = models->orders;
        models->orders = next;
    }
    hps_lock_release(&models->lock);
    order_free(old);
    return HPS_OK;
}

uint32_t hps_models_table_at(struct hps_models *models, const char *model, uint32_t place,
                             char *out_name, size_t size)
{
    uint32_t n = 0;
    hps_lock_acquire(&models->lock);
    const struct order *order = models->orders;
    while (order != NULL && strcmp(order->model, model) != 0) {
        order = order->next;
    }
    n = order == NULL ? 0 : order->n;
    snprintf(out_name, size, "%s", place < n ? order->names[place] : "");
    hps_lock_release(&models->lock);
    return n;
}

void hps_models_free(struct hps_models *models)
{
    if (models == NULL) {
        return;
    }
    struct snapshot *last = atomic_load(&models->current);
    struct order *order;
    HPS_ASSERT(last->n == 0);
    while (models->expected != NULL) {
        expected_free(models, &models->expected);
    }
    while (models->orders != NULL) {
        order_take(models, models->orders->model, &order);
        order_free(order);
    }
    hps_lock_fini(&models->lock);
    hps_free(last);
    hps_free(models->spare);
    hps_epoch_free(models->epoch);
    hps_free(models);
}

/* The link to the model's entry, or the end of the list. Lock held. */
static struct expected **expected_find(struct hps_models *models, const char *model, size_t size)
{
    struct expected **at = &models->expected;
    while (*at != NULL && !hps_text_is((*at)->model, model, size)) {
        at = &(*at)->next;
    }
    return at;
}

static struct expected *expected_new(const char *model)
{
    struct expected *one = hps_calloc(1, sizeof(*one));
    if (one == NULL) {
        return NULL;
    }
    one->model = hps_strdup(model);
    if (one->model == NULL) {
        hps_free(one);
        return NULL;
    }
    return one;
}

hps_status hps_models_expect(struct hps_models *models, const char *model, const char *why)
{
    hps_status status = HPS_OK;
    hps_lock_acquire(&models->lock);
    struct expected **at = expected_find(models, model, strlen(model));
    if (*at == NULL && why != NULL) {
        *at = expected_new(model); /* appended to the list */
        status = *at != NULL ? HPS_OK : HPS_NO_MEMORY;
    }
    if (*at != NULL && why != NULL) {
        snprintf((*at)->why, sizeof((*at)->why), "%s", why);
    } else if (*at != NULL) {
        expected_free(models, at);
    }
    hps_lock_release(&models->lock);
    return status;
}

/* False: the model is not expected. */
static bool is_expected(struct hps_models *models, const char *model, size_t size,
                        struct hps_error *err)
{
    hps_lock_acquire(&models->lock);
    const struct expected *one = *expected_find(models, model, size);
    if (one != NULL) {
        hps_error_set(err, HPS_UNAVAILABLE, "%s", one->why);
    }
    hps_lock_release(&models->lock);
    return one != NULL;
}

/* Which version of a model a caller wants. */
struct choice {
    int64_t number;    /* 0: the active one, or the one with the label */
    const char *label; /* not terminated */
    size_t label_size; /* 0: none */
};

static hps_status not_there(bool model_known, const char *model, size_t size,
                            const struct choice *choice, struct hps_error *err)
{
    if (!model_known) {
        return hps_error_set(err, HPS_NOT_FOUND, "model \"%.*s\" is not loaded",
                             size > 128 ? 128 : (int)size, model);
    }
    if (choice->number != 0) {
        return hps_error_set(err, HPS_NOT_FOUND, "version %lld of model \"%.*s\" is not loaded",
                             (long long)choice->number, (int)size, model);
    }
    if (choice->label_size != 0) {
        return hps_error_set(
            err, HPS_NOT_FOUND, "no resident version of model \"%.*s\" has the label \"%.*s\"",
            (int)size, model, choice->label_size > 128 ? 128 : (int)choice->label_size,
            choice->label);
    }
    return hps_error_set(err, HPS_UNAVAILABLE, "model \"%.*s\" has no active version", (int)size,
                         model);
}

/* Whether `entry` is the wanted version and better than `best`, which may be NULL. */
static bool is_better(const struct model_entry *entry, const struct choice *choice,
                      const struct hps_version *best)
{
    const struct hps_version *version = entry->version;
    if (choice->number != 0) {
        return version->number == choice->number;
    }
    if (choice->label_size == 0) {
        return entry->active;
    }
    return version->label != NULL &&
           hps_text_is(version->label, choice->label, choice->label_size) &&
           (best == NULL || version->number > best->number);
}

/* The version, pinned, or NULL. out_known: the model has some version. */
static struct hps_version *find_pinned(struct hps_models *models, const char *model,
                                       size_t model_size, const struct choice *choice,
                                       bool *out_known)
{
    struct hps_version *found = NULL;
    struct hps_epoch_slot *slot = hps_epoch_enter(models->epoch);
    const struct snapshot *now = atomic_load(&models->current);
    uint32_t at = *snapshot_place(now, model, model_size);
    bool known = at != 0;
    bool by_label = choice->number == 0 && choice->label_size != 0;
    while (at != 0 && (found == NULL || by_label)) {
        const struct model_entry *entry = &now->entries[at - 1];
        at = entry->next;
        found = is_better(entry, choice, found) ? entry->version : found;
    }
    if (found != NULL) {
        hps_version_pin(found);
    }
    hps_epoch_leave(models->epoch, slot);
    *out_known = known;
    return found;
}

static hps_status pin(struct hps_models *models, const char *model, size_t model_size,
                      const struct choice *choice, struct hps_version **out_version,
                      struct hps_error *err)
{
    bool known;
    struct hps_version *found = find_pinned(models, model, model_size, choice, &known);
    if (found == NULL && !known) {
        if (is_expected(models, model, model_size, err)) {
            return HPS_UNAVAILABLE;
        }
        /* The model may have been added between the two checks; it is then no longer expected. */
        found = find_pinned(models, model, model_size, choice, &known);
    }
    if (found == NULL) {
        return not_there(known, model, model_size, choice, err);
    }
    *out_version = found;
    return HPS_OK;
}

hps_status hps_models_pin(struct hps_models *models, const char *model, size_t model_size,
                          int64_t number, struct hps_version **out_version, struct hps_error *err)
{
    const struct choice choice = {.number = number};
    return pin(models, model, model_size, &choice, out_version, err);
}

hps_status hps_models_pin_label(struct hps_models *models, const char *model, size_t model_size,
                                const char *label, size_t label_size,
                                struct hps_version **out_version, struct hps_error *err)
{
    const struct choice choice = {.label = label, .label_size = label_size};
    HPS_ASSERT(label_size > 0);
    return pin(models, model, model_size, &choice, out_version, err);
}

static int by_number(const void *a, const void *b)
{
    int64_t left = (*(struct hps_version *const *)a)->number;
    int64_t right = (*(struct hps_version *const *)b)->number;
    return (left > right) - (left < right);
}

size_t hps_models_pin_all(struct hps_models *models, const char *model, size_t model_size,
                          struct hps_version **out_versions, size_t n_max, int64_t *out_active)
{
    size_t n = 0;
    struct hps_epoch_slot *slot = hps_epoch_enter(models->epoch);
    const struct snapshot *now = atomic_load(&models->current);
    uint32_t first = *snapshot_place(now, model, model_size);
    *out_active = 0;
    for (uint32_t at = first; at != 0; at = now->entries[at - 1].next) {
        n++;
    }
    size_t n_pinned = 0;
    for (uint32_t at = n <= n_max ? first : 0; at != 0; at = now->entries[at - 1].next) {
        const struct model_entry *entry = &now->entries[at - 1];
        hps_version_pin(entry->version);
        out_versions[n_pinned++] = entry->version;
        *out_active = entry->active ? entry->version->number : *out_active;
    }
    hps_epoch_leave(models->epoch, slot);
    if (n_pinned > 1) {
        qsort(out_versions, n_pinned, sizeof(struct hps_version *), by_number);
    }
    return n;
}

void hps_models_names(struct hps_models *models, bool (*fn)(void *ctx, const char *model),
                      void *ctx)
{
    struct hps_epoch_slot *slot = hps_epoch_enter(models->epoch);
    const struct snapshot *now = atomic_load(&models->current);
    bool more = true;
    for (uint32_t i = 0; i < now->n && more; i++) {
        const char *model = now->entries[i].version->model;
        if (*snapshot_place(now, model, strlen(model)) == i + 1) { /* first entry of its model */
            more = fn(ctx, model);
        }
    }
    hps_epoch_leave(models->epoch, slot);
}

/* The spare as a copy of the current snapshot, to be changed and published. */
static struct snapshot *snapshot_copy(struct hps_models *models)
{
    const struct snapshot *old = atomic_load(&models->current);
    struct snapshot *copy = models->spare;
    copy->n = old->n;
    memcpy(copy->entries, old->entries, old->n * sizeof(old->entries[0]));
    return copy;
}

/* Takes `next`. Returns the previous snapshot, which no reader holds any more. */
static struct snapshot *snapshot_publish(struct hps_models *models, struct snapshot *next)
{
    snapshot_index(next);
    struct snapshot *old = atomic_exchange(&models->current, next);
    uint64_t stamp = hps_epoch_retire(models->epoch);
    while (!hps_epoch_passed(models->epoch, stamp)) {
        sched_yield();
    }
    return old;
}

/* Make both snapshots large enough for one more version. */
static hps_status snapshots_grow(struct hps_models *models)
{
    const struct snapshot *now = atomic_load(&models->current);
    if (now->n < now->n_max) {
        return HPS_OK;
    }
    struct snapshot *wider = snapshot_new(2 * now->n_max + 4);
    struct snapshot *spare = snapshot_new(2 * now->n_max + 4);
    if (wider == NULL || spare == NULL) {
        hps_free(wider);
        hps_free(spare);
        return HPS_NO_MEMORY;
    }
    hps_free(models->spare);
    models->spare = wider;
    hps_free(snapshot_publish(models, snapshot_copy(models)));
    models->spare = spare;
    return HPS_OK;
}

static size_t snapshot_find(const struct snapshot *now, const char *model, int64_t number)
{
    for (size_t i = 0; i < now->n; i++) {
        if (now->entries[i].version->number == number &&
            strcmp(now->entries[i].version->model, model) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

hps_status hps_models_add(struct hps_models *models, struct hps_version *version)
{
    const struct snapshot *now = atomic_load(&models->current);
    if (snapshot_find(now, version->model, version->number) != SIZE_MAX) {
        return HPS_EXISTS;
    }
    hps_status status = snapshots_grow(models);
    if (status != HPS_OK) {
        return status;
    }
    struct snapshot *next = snapshot_copy(models);
    next->entries[next->n++] = (struct model_entry){.version = version};
    models->spare = snapshot_publish(models, next);
    return HPS_OK;
}

hps_status hps_models_activate(struct hps_models *models, const char *model, int64_t number)
{
    struct snapshot *next = snapshot_copy(models);
    if (number != 0 && snapshot_find(next, model, number) == SIZE_MAX) {
        return HPS_NOT_FOUND;
    }
    for (size_t i = 0; i < next->n; i++) {
        if (strcmp(next->entries[i].version->model, model) == 0) {
            next->entries[i].active = number != 0 && next->entries[i].version->number == number;
        }
    }
    models->spare = snapshot_publish(models, next);
    return HPS_OK;
}

hps_status hps_models_remove(struct hps_models *models, const char *model, int64_t number)
{
    struct snapshot *next = snapshot_copy(models);
    size_t at = snapshot_find(next, model, number);
    if (at == SIZE_MAX) {
        return HPS_NOT_FOUND;
    }
    next->entries[at] = next->entries[--next->n];
    models->spare = snapshot_publish(models, next);
    return HPS_OK;
}
