/* SPDX-License-Identifier: Apache-2.0
 *
 * Hot keys by model and table, their records, and filling a host map and a device with them.
 *
 * Records are hints: each stands for itself, so that a save which a crash cuts short, or a record
 * that is damaged, costs some keys and nothing else. Their keys are hot/MODEL/NUMBER.
 */
#include "server/load/warmup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "cache/gpu/tier.h"
#include "cache/lookup/hot.h"
#include "cache/lookup/tiers.h"

enum {
    BATCH_KEYS_MAX = 1024,
    BATCH_BYTES_MAX = 1 << 20,
    PAUSE_US_MAX = 50 * 1000,
    COMING_POLL_NS = 1000 * 1000,
    RECORD_KEY_BYTES_MAX = 192
};

struct warm_table {
    struct warm_table *next;
    char *name;
    struct hps_hot *hot; /* lives as long as this */
};

struct warm_model {
    struct warm_model *next;
    char *name;
    struct warm_table *tables;
    bool attached; /* there is, or was a moment ago, a version of it */
    /* Only of the thread that saves. */
    uint32_t n_records; /* numbers of records in the store are below this */
    uint64_t n_seen;    /* at the last save */
    bool stale;         /* the last save failed */
};

struct hps_warmup {
    struct hps_warmup_options options;
    struct hps_metric *rows;
    struct hps_lock lock; /* over the lists, which only a save shortens, and `attached` */
    struct warm_model *models;
};

const char *hps_warmup_end_text(enum hps_warmup_end end)
{
    static const char *const texts[] = {[HPS_WARMUP_DONE] = "done",
                                        [HPS_WARMUP_NO_ROOM] = "no room",
                                        [HPS_WARMUP_TIME] = "time is up",
                                        [HPS_WARMUP_STOPPED] = "stopped",
                                        [HPS_WARMUP_FAILED] = "failed"};
    HPS_ASSERT((unsigned)end < sizeof(texts) / sizeof(texts[0]));
    return texts[end];
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct hps_warmup *hps_warmup_new(const struct hps_warmup_options *options)
{
    struct hps_warmup *warmup = hps_calloc(1, sizeof(*warmup));
    if (warmup == NULL) {
        return NULL;
    }
    warmup->options = *options;
    warmup->rows = hps_server_metric(options->metrics, HPS_M_INSERTION_ROWS,
                                     hps_tier_name(HPS_TIER_HOST), "warmup", NULL, NULL);
    hps_lock_init(&warmup->lock, HPS_LOCK_WARMUP);
    return warmup;
}

static void model_free(struct warm_model *model)
{
    while (model->tables != NULL) {
        struct warm_table *table = model->tables;
        model->tables = table->next;
        hps_hot_free(table->hot);
        hps_free(table->name);
        hps_free(table);
    }
    hps_free(model->name);
    hps_free(model);
}

void hps_warmup_free(struct hps_warmup *warmup)
{
    if (warmup == NULL) {
        return;
    }
    while (warmup->models != NULL) {
        struct warm_model *model = warmup->models;
        warmup->models = model->next;
        model_free(model);
    }
    hps_lock_fini(&warmup->lock);
    hps_free(warmup);
}

/* Lock held. NULL: not there, or no memory to make it. */
static struct warm_model *model_of(struct hps_warmup *warmup, const char *name, bool make)
{
    struct warm_model **at = &warmup->models;
    while (*at != NULL && strcmp((*at)->name, name) != 0) {
        at = &(*at)->next;
    }
    if (*at != NULL || !make) {
        return *at;
    }
    struct warm_model *model = hps_calloc(1, sizeof(*model));
    char *copy = hps_strdup(name);
    if (model == NULL || copy == NULL) {
        hps_free(model);
        hps_free(copy);
        return NULL;
    }
    model->name = copy;
    *at = model;
    return model;
}

static struct warm_table *table_of(const struct warm_model *model, const char *name, size_t size)
{
    struct warm_table *table = model->tables;
    while (table != NULL && (strlen(table->name) != size || memcmp(table->name, name, size) != 0)) {
        table = table->next;
    }
    return table;
}

/* The counts of a table, with room for n_keys; NULL: no memory. Lock held. */
static struct hps_hot *hot_of(struct warm_model *model, const char *name, size_t size,
                              uint32_t n_keys)
{
    struct warm_table *table = table_of(model, name, size);
    if (table != NULL) {
        hps_ignore(hps_hot_grow(table->hot, n_keys)); /* fewer keys are counted */
        return table->hot;
    }
    table = hps_calloc(1, sizeof(*table));
    char *copy = hps_strndup(name, size);
    struct hps_hot *hot = hps_hot_new(n_keys);
    if (table == NULL || copy == NULL || hot == NULL) {
        hps_free(table);
        hps_free(copy);
        hps_hot_free(hot);
        return NULL;
    }
    *table = (struct warm_table){.next = model->tables, .name = copy, .hot = hot};
    model->tables = table;
    return hot;
}

/* What a row takes in the host map, about. */
static uint64_t host_row_bytes(const struct hps_table *table)
{
    return ((uint64_t)table->row_bytes + 15) / 16 * 16 + 24;
}

/* A table's share of the model's counts is that of its rows, but no more than its rows or those
 * that the map can hold, and half as many again: keys that are about as hot as the last ones that
 * find room in the map must be counted to be told from those. Beside a device there is no other
 * bound than the rows. */
static uint32_t keys_worth(const struct hps_warmup *warmup, const struct hps_version *version,
                           const struct hps_table *table, uint64_t n_rows_all)
{
    double share = n_rows_all > 0 ? (double)table->n_rows / (double)n_rows_all : 0;
    uint64_t n_places = warmup->options.hot_bytes_max / HPS_HOT_KEY_BYTES;
    uint64_t n = (uint64_t)((double)n_places * share);
    uint64_t useful = warmup->options.host_bytes_max / host_row_bytes(table);
    useful = useful < table->n_rows && version->gpu == NULL ? useful : table->n_rows;
    useful += useful / 2;
    n = n < useful ? n : useful;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

void hps_warmup_attach(struct hps_warmup *warmup, struct hps_version *version)
{
    uint64_t n_rows = 0;
    if (warmup->options.hot_bytes_max == 0 ||
        (warmup->options.host == NULL && version->gpu == NULL)) {
        return;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        n_rows += version->tables[i].n_rows;
    }
    hps_lock_acquire(&warmup->lock);
    struct warm_model *model = model_of(warmup, version->model, true);
    for (uint32_t i = 0; model != NULL && i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        model->attached = true;
        version->hot[i] = hot_of(model, table->name, strlen(table->name),
                                 keys_worth(warmup, version, table, n_rows));
    }
    hps_lock_release(&warmup->lock);
}

void hps_warmup_detach(struct hps_warmup *warmup, const char *name)
{
    hps_lock_acquire(&warmup->lock);
    struct warm_model *model = model_of(warmup, name, false);
    if (model != NULL) {
        model->attached = false;
    }
    hps_lock_release(&warmup->lock);
}

/* ---- reading --------------------------------------------------------------------------------- */

static size_t record_key(char key[RECORD_KEY_BYTES_MAX], const char *model, uint32_t number)
{
    return (size_t)snprintf(key, RECORD_KEY_BYTES_MAX, "hot/%s/%06u", model, number);
}

/* The model's name and the number of a record's key; false: it is another one's. */
static bool parse_key(const char *key, size_t size, char out_model[RECORD_KEY_BYTES_MAX],
                      uint32_t *out_number)
{
    char text[RECORD_KEY_BYTES_MAX];
    char same[RECORD_KEY_BYTES_MAX];
    if (size >= sizeof(text)) {
        return false;
    }
    memcpy(text, key, size);
    text[size] = '\0';
    return sscanf(text, "hot/%150[^/]/%9u", out_model, out_number) == 2 &&
           record_key(same, out_model, *out_number) == size && memcmp(same, text, size) == 0;
}

static void take_record(const struct warm_model *model, const struct hps_hot_record *record)
{
    const struct warm_table *table = table_of(model, record->table, record->table_size);
    for (uint32_t i = 0; table != NULL && i < record->n; i++) {
        struct hps_hot_key key = hps_hot_record_key(record, i);
        hps_hot_add(table->hot, key.key, key.count);
    }
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct hps_warmup *warmup = ctx;
    char name[RECORD_KEY_BYTES_MAX];
    uint32_t number;
    if (!parse_key(key, key_size, name, &number)) {
        return HPS_OK;
    }
    struct hps_hot_record record;
    struct hps_error err = {0};
    struct warm_model *model = model_of(warmup, name, true);
    if (model == NULL) {
        return HPS_NO_MEMORY;
    }
    model->n_records = number >= model->n_records ? number + 1 : model->n_records;
    if (hps_hot_record_read(value, value_size, &record, &err) == HPS_OK) {
        take_record(model, &record);
    } else {
        model->stale = true; /* the next save replaces it */
        HPS_LOG(WARN, "warmup", "a record of hot keys is left out", HPS_STR("model", name),
                HPS_U64("record", number), HPS_STR("error", err.text));
    }
    return HPS_OK;
}

void hps_warmup_read(struct hps_warmup *warmup)
{
    struct hps_store *durable = warmup->options.durable;
    struct hps_error err = {0};
    if (durable == NULL || warmup->options.hot_bytes_max == 0 ||
        (warmup->options.host == NULL && !warmup->options.gpu)) {
        return;
    }
    hps_lock_acquire(&warmup->lock); /* nobody else knows it yet */
    hps_status status = durable->ops->record_scan(durable, "hot/", read_record, warmup, &err);
    hps_lock_release(&warmup->lock);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "warmup", "hot keys were not all read",
                HPS_STR("error", err.text[0] != '\0' ? err.text : hps_status_text(status)));
    }
}

/* ---- saving ---------------------------------------------------------------------------------- */

static hps_status put_record(struct hps_store *durable, const struct warm_model *model,
                             const struct warm_table *table, const struct hps_hot_key *keys,
                             uint32_t n, uint32_t number, struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    uint32_t name_size = (uint32_t)strlen(table->name);
    size_t size = hps_hot_record_size(name_size, n);
    uint64_t room = durable->ops->bytes_free(durable);
    if (size > room) { /* what the store holds back is for more than hints */
        return hps_error_set(err, HPS_EXHAUSTED,
                             "a record of %zu bytes, %" PRIu64 " are free before the guard", size,
                             room);
    }
    uint8_t *data = hps_alloc(size);
    if (data == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for a record of %u keys", n);
    }
    hps_hot_record_write(table->name, name_size, keys, n, data);
    hps_status status = durable->ops->record_put(durable, key, record_key(key, model->name, number),
                                                 data, size, err);
    hps_free(data);
    return status;
}

static hps_status save_table(struct hps_store *durable, struct warm_model *model,
                             const struct warm_table *table, uint32_t *number,
                             struct hps_error *err)
{
    struct hps_hot_key *keys = NULL;
    uint32_t n = 0;
    hps_status status = hps_hot_top(table->hot, &keys, &n);
    if (status != HPS_OK) {
        return hps_error_set(err, status, "no memory for the hot keys of \"%s\"", table->name);
    }
    for (uint32_t at = 0; status == HPS_OK && at < n; at += HPS_HOT_RECORD_KEYS_MAX) {
        uint32_t left = n - at;
        uint32_t n_now = left < HPS_HOT_RECORD_KEYS_MAX ? left : HPS_HOT_RECORD_KEYS_MAX;
        model->n_records = *number >= model->n_records ? *number + 1 : model->n_records;
        status = put_record(durable, model, table, keys + at, n_now, (*number)++, err);
    }
    hps_free(keys);
    return status;
}

/* From `number` on. */
static hps_status delete_records(struct hps_store *durable, struct warm_model *model,
                                 uint32_t number, struct hps_error *err)
{
    char key[RECORD_KEY_BYTES_MAX];
    while (model->n_records > number) {
        hps_status status = durable->ops->record_delete(
            durable, key, record_key(key, model->name, model->n_records - 1), err);
        if (status != HPS_OK) {
            return status;
        }
        model->n_records--;
    }
    return HPS_OK;
}

/* The next table to look at: lists grow meanwhile, at their front. */
static struct warm_table *first_table(struct hps_warmup *warmup, const struct warm_model *model)
{
    hps_lock_acquire(&warmup->lock);
    struct warm_table *table = model->tables;
    hps_lock_release(&warmup->lock);
    return table;
}

static void save_model(struct hps_warmup *warmup, struct warm_model *model, bool write, bool age)
{
    struct hps_store *durable = warmup->options.durable;
    struct hps_error err = {0};
    hps_status status = HPS_OK;
    uint64_t n_seen = 0;
    uint32_t number = 0;
    struct warm_table *tables = first_table(warmup, model);
    for (struct warm_table *table = tables; table != NULL; table = table->next) {
        n_seen += hps_hot_seen(table->hot);
    }
    write = write && (n_seen != model->n_seen || model->stale);
    for (struct warm_table *table = tables; table != NULL; table = table->next) {
        if (write && status == HPS_OK) {
            status = save_table(durable, model, table, &number, &err);
        }
        if (age) {
            hps_hot_age(table->hot);
        }
    }
    if (write && status == HPS_OK) {
        status = delete_records(durable, model, number, &err);
    }
    if (write) {
        model->n_seen = n_seen;
        model->stale = status != HPS_OK;
        HPS_LOG(DEBUG, "warmup", "hot keys written", HPS_STR("model", model->name),
                HPS_U64("records", number), HPS_STR("status", hps_status_text(status)));
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "warmup", "hot keys were not written", HPS_STR("model", model->name),
                HPS_STR("error", err.text));
    }
}

/* The first model without a version, taken off the list; NULL: each has one. */
static struct warm_model *take_detached(struct hps_warmup *warmup)
{
    hps_lock_acquire(&warmup->lock);
    struct warm_model **at = &warmup->models;
    while (*at != NULL && (*at)->attached) {
        at = &(*at)->next;
    }
    struct warm_model *model = *at;
    if (model != NULL) {
        *at = model->next;
    }
    hps_lock_release(&warmup->lock);
    return model;
}

/* What cannot be deleted is read, and found to belong to no model, at the next start. */
static void forget(struct hps_warmup *warmup, struct warm_model *model)
{
    struct hps_store *durable = warmup->options.durable;
    struct hps_error err = {0};
    if (delete_records(durable, model, 0, &err) != HPS_OK) {
        HPS_LOG(WARN, "warmup", "hot keys were not removed", HPS_STR("model", model->name),
                HPS_STR("error", err.text));
    }
    model_free(model);
}

void hps_warmup_save(struct hps_warmup *warmup, bool write, bool age)
{
    struct warm_model *model;
    write = write && warmup->options.durable != NULL && !warmup->options.read_only;
    while (write && (model = take_detached(warmup)) != NULL) {
        forget(warmup, model);
    }
    hps_lock_acquire(&warmup->lock);
    model = warmup->models;
    hps_lock_release(&warmup->lock);
    while (model != NULL) { /* others come at the end, none goes but here */
        save_model(warmup, model, write, age);
        hps_lock_acquire(&warmup->lock);
        model = model->next;
        hps_lock_release(&warmup->lock);
    }
}

/* ---- filling --------------------------------------------------------------------------------- */

/* The hot keys of one table, and how many of them, from the first, go where. */
struct queue {
    const struct hps_table *table;
    struct hps_hot_key *keys;
    uint32_t n_host; /* less once the map takes no more */
    uint32_t n_gpu;
    uint32_t at; /* those before it are done */
};

struct fill {
    struct hps_version *version;
    const struct hps_warmup_limits *limits;
    struct hps_warmup_report *report;
    struct hps_metric *rows_metric;
    struct queue *queues; /* [n_tables] */
    hps_key *keys;        /* [BATCH_KEYS_MAX] */
    uint32_t *slots;      /* [BATCH_KEYS_MAX] */
    uint8_t *rows;        /* of a batch of any table */
    bool full;            /* some table took no more */
};

static uint32_t batch_keys(const struct hps_table *table)
{
    uint32_t n = BATCH_BYTES_MAX / table->row_bytes;
    return n < 1 ? 1 : n < BATCH_KEYS_MAX ? n : BATCH_KEYS_MAX;
}

static bool host_useful(const struct hps_warmup *warmup, const struct hps_version *version)
{
    return version->n_tiers > 1 && version->tiers[0]->store == warmup->options.host &&
           warmup->options.host->ops->insert != NULL && !hps_version_host_complete(version);
}

static bool gpu_useful(const struct hps_warmup *warmup, const struct hps_version *version)
{
    const struct hps_config_model *model =
        version->gpu != NULL ? hps_config_model_find(warmup->options.config, version->model) : NULL;
    return model != NULL && model->init_ec;
}

bool hps_warmup_useful(struct hps_warmup *warmup, const struct hps_version *version)
{
    if (!host_useful(warmup, version) && !gpu_useful(warmup, version)) {
        return false;
    }
    hps_lock_acquire(&warmup->lock);
    bool known = model_of(warmup, version->model, false) != NULL;
    hps_lock_release(&warmup->lock);
    return known;
}

static uint32_t queue_end(const struct queue *queue)
{
    return queue->n_host > queue->n_gpu ? queue->n_host : queue->n_gpu;
}

/* A copy of the counts: they go on. */
static hps_status open_queues(struct hps_warmup *warmup, struct fill *fill)
{
    const struct hps_version *version = fill->version;
    bool host = host_useful(warmup, version);
    bool gpu = gpu_useful(warmup, version);
    hps_status status = HPS_OK;
    size_t row_bytes = 0;
    for (uint32_t i = 0; status == HPS_OK && i < version->n_tables; i++) {
        const struct hps_table *table = &version->tables[i];
        size_t bytes = (size_t)batch_keys(table) * table->row_bytes;
        struct queue *queue = &fill->queues[i];
        queue->table = table;
        row_bytes = bytes > row_bytes ? bytes : row_bytes;
        hps_lock_acquire(&warmup->lock);
        struct warm_model *model = model_of(warmup, version->model, false);
        struct warm_table *known =
            model != NULL ? table_of(model, table->name, strlen(table->name)) : NULL;
        hps_lock_release(&warmup->lock);
        uint32_t n = 0;
        if (known != NULL) {
            status = hps_hot_top(known->hot, &queue->keys, &n);
        }
        queue->n_host = host ? n : 0;
        uint64_t n_gpu = gpu ? hps_gpu_space_rows_max(version->gpu, i) : 0;
        queue->n_gpu = n < n_gpu ? n : (uint32_t)n_gpu;
    }
    for (uint32_t i = 0; i < version->n_tables; i++) {
        fill->report->n_keys_all += queue_end(&fill->queues[i]);
    }
    fill->keys = hps_calloc(BATCH_KEYS_MAX, sizeof(*fill->keys));
    fill->slots = hps_calloc(BATCH_KEYS_MAX, sizeof(*fill->slots));
    fill->rows = hps_alloc(row_bytes);
    if (fill->keys == NULL || fill->slots == NULL || fill->rows == NULL) {
        return HPS_NO_MEMORY;
    }
    return status;
}

/* The table whose next key is the hottest; NULL: all is done. */
static struct queue *hottest(struct fill *fill)
{
    struct queue *best = NULL;
    for (uint32_t i = 0; i < fill->version->n_tables; i++) {
        struct queue *queue = &fill->queues[i];
        if (queue->at < queue_end(queue) &&
            (best == NULL || queue->keys[queue->at].count > best->keys[best->at].count)) {
            best = queue;
        }
    }
    return best;
}

/* The next n keys of the queue: walk them down the tiers, whose rows go where they are wanted. A
 * shared tier may be away, and rows there may be of updates that this version does not have yet:
 * those are not taken. */
static hps_status fill_batch(struct fill *fill, struct queue *queue, uint32_t n,
                             struct hps_walk *walk)
{
    const struct hps_batch batch = {fill->keys, fill->slots, fill->rows, n};
    struct hps_walk_call call = {.purpose = HPS_WALK_WARM}; /* one that has begun is finished */
    struct hps_error err;

    for (uint32_t i = 0; i < n; i++) {
        fill->keys[i] = queue->keys[queue->at + i].key;
        fill->slots[i] = i;
    }
    call.closed |= queue->at < queue->n_host ? 0 : hps_tier_bit(HPS_TIER_HOST);
    call.closed |= queue->at < queue->n_gpu ? 0 : hps_tier_bit(HPS_TIER_GPU);
    hps_walk_init(walk, fill->version, queue->table, &batch);
    hps_status status = hps_walk_rest(walk, &call, &err);
    return status == HPS_OK ? walk->reports[HPS_TIER_HOST].insert_status : status;
}

void hps_warmup_pause_after(uint64_t start_us)
{
    uint64_t us = hps_clock_us() - start_us;
    us = us < PAUSE_US_MAX ? us : PAUSE_US_MAX;
    const struct timespec pause = {0, (long)us * 1000};
    if (us > 0) {
        nanosleep(&pause, NULL);
    }
}

/* The map takes no more of this table: what is left is for the device alone. */
static void end_host(struct fill *fill, struct queue *queue)
{
    queue->n_host = queue->at;
    fill->full = true;
}

/* A version that has just taken over gets its caches a little later. false: they come soon, wait.
 * Where that of the table does not come what is left of it is for the map alone. */
static bool settle_gpu(const struct fill *fill, struct queue *queue)
{
    const struct hps_gpu_space *gpu = fill->version->gpu;
    if (queue->at >= queue->n_gpu || hps_gpu_space_caches(gpu, queue->table->id)) {
        return true;
    }
    if (hps_gpu_space_coming(gpu)) {
        return false;
    }
    queue->n_gpu = queue->at; /* other tables may have theirs */
    return true;
}

/* Keys of the next batch; 0: no more of this table. room_bytes: of the host map */
static uint32_t next_batch(struct fill *fill, struct queue *queue, uint64_t room_bytes)
{
    uint64_t n_room = room_bytes / host_row_bytes(queue->table);
    uint32_t n = batch_keys(queue->table);
    if (queue->at < queue->n_host && n_room == 0) {
        end_host(fill, queue);
    }
    bool to_host = queue->at < queue->n_host;
    uint32_t n_left = (to_host ? queue->n_host : queue_end(queue)) - queue->at;
    if (queue->at < queue->n_gpu && n_left > queue->n_gpu - queue->at) {
        n_left = queue->n_gpu - queue->at; /* colder ones have no place there */
    }
    n = n < n_left ? n : n_left;
    return to_host && n > n_room ? (uint32_t)n_room : n;
}

static void note_batch(struct fill *fill, struct queue *queue, uint32_t n,
                       const struct hps_walk *walk, hps_status status)
{
    struct hps_warmup_report *report = fill->report;
    const struct hps_tier_report *host = &walk->reports[HPS_TIER_HOST];
    bool to_host = queue->at < queue->n_host;
    queue->at += n;
    report->n_keys += n;
    report->n_rows += host->n_inserted;
    report->n_gpu_rows += walk->reports[HPS_TIER_GPU].n_inserted;
    hps_metric_add(fill->rows_metric, host->n_inserted);
    if (status != HPS_OK) {
        report->end = status == HPS_DATA_LOSS ? report->end : HPS_WARMUP_FAILED;
        hps_ignore(hps_error_set(&report->error, status, "table \"%s\": %s", queue->table->name,
                                 hps_status_text(status)));
    } else if (to_host && (host->n_evicted > 0 || (host->n_no_room > 0 && host->n_inserted == 0))) {
        /* colder keys would only push out hotter ones, which nobody has asked for yet */
        end_host(fill, queue);
    }
}

/* One batch; false: that was the last one. */
static bool fill_some(struct fill *fill)
{
    struct hps_warmup_report *report = fill->report;
    struct queue *queue = hottest(fill);
    uint64_t start_us = hps_clock_us();
    uint64_t room = 0;
    if (queue == NULL) {
        report->end = fill->full ? HPS_WARMUP_NO_ROOM : HPS_WARMUP_DONE;
        return false;
    }
    if (fill->limits->deadline_us != 0 && start_us >= fill->limits->deadline_us) {
        report->end = HPS_WARMUP_TIME;
        return false;
    }
    if (!fill->limits->go_on(fill->limits->ctx, report, &room)) {
        report->end = HPS_WARMUP_STOPPED;
        return false;
    }
    if (!settle_gpu(fill, queue)) {
        const struct timespec pause = {0, COMING_POLL_NS};
        nanosleep(&pause, NULL);
        return true;
    }
    uint32_t n = next_batch(fill, queue, room);
    if (n > 0) { /* else the map is full, and so it is for the other tables */
        struct hps_walk walk;
        hps_status status = fill_batch(fill, queue, n, &walk);
        note_batch(fill, queue, n, &walk, status);
        hps_warmup_pause_after(start_us);
    }
    return report->end == HPS_WARMUP_DONE;
}

void hps_warmup_fill(struct hps_warmup *warmup, struct hps_version *version,
                     const struct hps_warmup_limits *limits, struct hps_warmup_report *out_report)
{
    struct hps_warmup_report report = {.end = HPS_WARMUP_DONE};
    struct fill fill = {.version = version,
                        .limits = limits,
                        .report = &report,
                        .rows_metric = warmup->rows,
                        .queues = hps_calloc(version->n_tables, sizeof(*fill.queues))};
    uint64_t start_us = hps_clock_us();
    hps_status status = fill.queues != NULL ? open_queues(warmup, &fill) : HPS_NO_MEMORY;
    if (status != HPS_OK) {
        report.end = HPS_WARMUP_FAILED;
        hps_ignore(hps_error_set(&report.error, status, "no memory for the hot keys"));
    }
    while (status == HPS_OK && fill_some(&fill)) {
    }
    for (uint32_t i = 0; fill.queues != NULL && i < version->n_tables; i++) {
        hps_free(fill.queues[i].keys);
    }
    hps_free(fill.queues);
    hps_free(fill.keys);
    hps_free(fill.slots);
    hps_free(fill.rows);
    if (report.error.status != HPS_OK) { /* damage costs its batch alone */
        report.end = HPS_WARMUP_FAILED;
    }
    report.duration_us = hps_clock_us() - start_us;
    *out_report = report;
}
