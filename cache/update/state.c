/* SPDX-License-Identifier: Apache-2.0
 *
 * The update state of a version: a sequence number and the positions of the source. It is stored as
 * records of the durable store, together with the rows, and kept in memory for readers.
 *
 *     update/sequence         batches applied, u64 LE
 *     update/position/KEY     a position, key and value as given by the source
 *     update/rows/TABLE       rows that updates have added to a table (u32 LE, its id), i64 LE
 *     update/rows/            present if rows were counted from the first batch on
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "cache/update/internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the sequence is stored as it lies");

#define SEQUENCE_KEY    "update/sequence"
#define POSITION_PREFIX "update/position/"
#define ROWS_PREFIX     "update/rows/"

enum {
    SEQUENCE_KEY_SIZE = sizeof(SEQUENCE_KEY) - 1,
    PREFIX_SIZE = sizeof(POSITION_PREFIX) - 1,
    ROWS_PREFIX_SIZE = sizeof(ROWS_PREFIX) - 1,
    ROWS_KEY_SIZE = ROWS_PREFIX_SIZE + sizeof(uint32_t),
    NAME_BYTES_MAX = HPS_RECORD_KEY_BYTES_MAX - PREFIX_SIZE
};

_Static_assert((int)ROWS_KEY_SIZE == (int)UPDATE_ROWS_KEY_BYTES, "room for the name of a record");

/* ---- positions ------------------------------------------------------------------------------- */

static const uint8_t *name_of(const struct update_position *position)
{
    return position->bytes + PREFIX_SIZE;
}

/* A copy under the key used in the store. NULL: no memory. */
static struct update_position *position_new(const void *name, size_t name_size, const void *value,
                                            size_t value_size)
{
    size_t key_size = PREFIX_SIZE + name_size;
    struct update_position *position = hps_alloc(sizeof(*position) + key_size + value_size);
    if (position == NULL) {
        return NULL;
    }
    memcpy(position->bytes, POSITION_PREFIX, PREFIX_SIZE);
    if (name_size > 0) {
        memcpy(position->bytes + PREFIX_SIZE, name, name_size);
    }
    if (value_size > 0) {
        memcpy(position->bytes + key_size, value, value_size);
    }
    position->next = NULL;
    position->name_size = name_size;
    position->record = (struct hps_record){.key = position->bytes,
                                           .key_size = key_size,
                                           .value = position->bytes + key_size,
                                           .value_size = value_size};
    return position;
}

static void positions_free(struct update_position *position)
{
    while (position != NULL) {
        struct update_position *next = position->next;
        hps_free(position);
        position = next;
    }
}

/* Takes `position`; it replaces a position with the same name. */
static void position_publish(struct hps_updates *updates, struct update_position *position)
{
    struct update_position *old = NULL;
    hps_lock_acquire(&updates->lock);
    struct update_position **at = &updates->positions;
    while (*at != NULL && ((*at)->name_size != position->name_size ||
                           memcmp(name_of(*at), name_of(position), position->name_size) != 0)) {
        at = &(*at)->next;
    }
    old = *at;
    position->next = old == NULL ? NULL : old->next;
    *at = position;
    hps_lock_release(&updates->lock);
    hps_free(old);
}

hps_status hps_update_positions(struct hps_version *version, hps_record_fn fn, void *ctx)
{
    struct hps_updates *updates = version->updates;
    hps_status status = HPS_OK;
    if (updates == NULL) {
        return HPS_OK;
    }
    hps_lock_acquire(&updates->lock);
    for (const struct update_position *p = updates->positions; p != NULL && status == HPS_OK;
         p = p->next) {
        status = fn(ctx, name_of(p), p->name_size, p->record.value, p->record.value_size);
    }
    hps_lock_release(&updates->lock);
    return status;
}

bool hps_update_is_position(const void *key, size_t key_size, const void **out_name,
                            size_t *out_name_size)
{
    if (key_size <= PREFIX_SIZE || memcmp(key, POSITION_PREFIX, PREFIX_SIZE) != 0) {
        return false;
    }
    *out_name = (const uint8_t *)key + PREFIX_SIZE;
    *out_name_size = key_size - PREFIX_SIZE;
    return true;
}

uint64_t hps_update_sequence(const struct hps_version *version)
{
    return version->updates == NULL
               ? 0
               : atomic_load_explicit(&version->updates->sequence, memory_order_acquire);
}

void hps_update_times_set(struct hps_version *version, int64_t event_time_ms, int64_t as_of_ms)
{
    struct hps_updates *updates = version->updates;
    atomic_store_explicit(&updates->event_time_ms, event_time_ms, memory_order_relaxed);
    atomic_store_explicit(&updates->as_of_ms, as_of_ms, memory_order_release);
}

int64_t hps_update_age_ms(const struct hps_version *version)
{
    int64_t as_of_ms = hps_update_as_of_ms(version);
    return as_of_ms == 0 ? -1 : hps_clock_forward_ms() - as_of_ms;
}

int64_t hps_update_event_time_ms(const struct hps_version *version)
{
    return version->updates == NULL
               ? 0
               : atomic_load_explicit(&version->updates->event_time_ms, memory_order_relaxed);
}

int64_t hps_update_as_of_ms(const struct hps_version *version)
{
    return version->updates == NULL
               ? 0
               : atomic_load_explicit(&version->updates->as_of_ms, memory_order_acquire);
}

/* ---- records of a batch ---------------------------------------------------------------------- */

static hps_status copy_positions(const struct hps_update_batch *batch,
                                 struct update_records *records, struct hps_error *err)
{
    struct update_position **at = &records->positions;
    for (uint32_t i = 0; i < batch->n_positions; i++) {
        const struct hps_record *from = &batch->positions[i];
        if (from->key_size > NAME_BYTES_MAX) {
            return hps_error_set(err, HPS_INVALID, "a position with a key of %zu bytes, limit %d",
                                 from->key_size, NAME_BYTES_MAX);
        }
        *at = position_new(from->key, from->key_size, from->value, from->value_size);
        if (*at == NULL) {
            return hps_error_set(err, HPS_NO_MEMORY, "no memory for %" PRIu32 " positions",
                                 batch->n_positions);
        }
        records->records[records->n++] = (*at)->record;
        at = &(*at)->next;
    }
    return HPS_OK;
}

/* Records of the row counts of the batch's tables. The first batch also records that rows are
 * counted. */
static void add_rows(struct update_rows *rows, struct update_records *records)
{
    uint32_t n = 0;
    if (records->sequence == 1) {
        records->records[records->n++] = (struct hps_record){ROWS_PREFIX, ROWS_PREFIX_SIZE, "", 0};
    }
    for (uint32_t i = 0; rows->changed != NULL && i < rows->n_tables; i++) {
        if (rows->touched[i]) {
            char *key = rows->keys[n++];
            memcpy(key, ROWS_PREFIX, ROWS_PREFIX_SIZE);
            memcpy(key + ROWS_PREFIX_SIZE, &i, sizeof(i));
            records->records[records->n++] =
                (struct hps_record){key, ROWS_KEY_SIZE, &rows->changed[i], sizeof(int64_t)};
        }
    }
}

hps_status update_records_make(const struct hps_version *version,
                               const struct hps_update_batch *batch, struct update_rows *rows,
                               struct update_records *out_records, struct hps_error *err)
{
    struct update_records *records = out_records;
    size_t n_max = (size_t)batch->n_positions + version->n_tables + 2;
    memset(records, 0, sizeof(*records));
    records->sequence = hps_update_sequence(version) + 1;
    records->records = hps_calloc(n_max, sizeof(struct hps_record));
    if (records->records == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %" PRIu32 " positions",
                             batch->n_positions);
    }
    hps_status status = copy_positions(batch, records, err);
    if (status != HPS_OK) {
        update_records_free(records);
        return status;
    }
    add_rows(rows, records);
    records->records[records->n++] = (struct hps_record){
        SEQUENCE_KEY, SEQUENCE_KEY_SIZE, &records->sequence, sizeof(records->sequence)};
    HPS_ASSERT(records->n <= n_max);
    return HPS_OK;
}

void update_records_publish(struct hps_updates *updates, struct update_records *records)
{
    while (records->positions != NULL) {
        struct update_position *position = records->positions;
        records->positions = position->next;
        position_publish(updates, position);
    }
    atomic_store_explicit(&updates->sequence, records->sequence, memory_order_release);
}

void update_records_free(struct update_records *records)
{
    positions_free(records->positions);
    hps_free(records->records);
    records->positions = NULL;
    records->records = NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

struct reading {
    struct hps_updates *updates;
    uint32_t n_tables;
    bool counted; /* rows were counted from the first batch on */
    struct hps_error *err;
};

static hps_status read_sequence(const struct reading *reading, const void *value, size_t size)
{
    uint64_t sequence;
    if (size != sizeof(sequence)) {
        return hps_error_set(reading->err, HPS_DATA_LOSS,
                             "record \"%s\" has %zu bytes, expected %zu", SEQUENCE_KEY, size,
                             sizeof(sequence));
    }
    memcpy(&sequence, value, sizeof(sequence));
    atomic_store(&reading->updates->sequence, sequence);
    return HPS_OK;
}

static hps_status read_rows(struct reading *reading, const uint8_t *key, size_t key_size,
                            const void *value, size_t size)
{
    uint32_t table = 0;
    int64_t changed = 0;
    if (key_size == ROWS_PREFIX_SIZE) {
        reading->counted = true;
        return HPS_OK;
    }
    if (key_size == ROWS_KEY_SIZE) {
        memcpy(&table, key + ROWS_PREFIX_SIZE, sizeof(table));
    }
    if (key_size != ROWS_KEY_SIZE || table >= reading->n_tables || size != sizeof(changed)) {
        return hps_error_set(reading->err, HPS_DATA_LOSS,
                             "record \"%s\" of table %" PRIu32 " has %zu bytes, expected %zu",
                             ROWS_PREFIX, table, size, sizeof(changed));
    }
    memcpy(&changed, value, sizeof(changed));
    atomic_store(&reading->updates->rows_changed[table], changed);
    atomic_store(&reading->updates->rows_updated, true);
    return HPS_OK;
}

static hps_status read_record(void *ctx, const void *key, size_t key_size, const void *value,
                              size_t value_size)
{
    struct reading *reading = ctx;
    if (key_size == SEQUENCE_KEY_SIZE && memcmp(key, SEQUENCE_KEY, SEQUENCE_KEY_SIZE) == 0) {
        return read_sequence(reading, value, value_size);
    }
    if (key_size >= ROWS_PREFIX_SIZE && memcmp(key, ROWS_PREFIX, ROWS_PREFIX_SIZE) == 0) {
        return read_rows(reading, key, key_size, value, value_size);
    }
    if (key_size < PREFIX_SIZE || memcmp(key, POSITION_PREFIX, PREFIX_SIZE) != 0) {
        return HPS_OK; /* a record of another module */
    }
    struct update_position *position =
        position_new((const uint8_t *)key + PREFIX_SIZE, key_size - PREFIX_SIZE, value, value_size);
    if (position == NULL) {
        return hps_error_set(reading->err, HPS_NO_MEMORY, "no memory for a position");
    }
    position_publish(reading->updates, position);
    return HPS_OK;
}

static struct hps_updates *updates_new(uint32_t n_tables)
{
    struct hps_updates *updates = hps_calloc(1, sizeof(*updates));
    if (updates == NULL) {
        return NULL;
    }
    updates->rows_changed = hps_calloc(n_tables, sizeof(*updates->rows_changed));
    if (updates->rows_changed == NULL) {
        hps_free(updates);
        return NULL;
    }
    hps_lock_init(&updates->lock, HPS_LOCK_UPDATES);
    hps_cond_init(&updates->changed);
    return updates;
}

void hps_updates_free(struct hps_updates *updates)
{
    if (updates != NULL) {
        HPS_ASSERT(!atomic_load(&updates->busy));
        positions_free(updates->positions);
        hps_free(updates->version_tables);
        hps_free(updates->rows_changed);
        hps_cond_fini(&updates->changed);
        hps_lock_fini(&updates->lock);
        hps_free(updates);
    }
}

static hps_status read_state(struct hps_version *version, struct hps_space *lowest,
                             struct hps_error *err)
{
    struct hps_updates *updates = version->updates;
    struct reading reading = {.updates = updates, .n_tables = version->n_tables, .err = err};
    const struct hps_store_ops *ops = lowest->store->ops;
    hps_status status = ops->durable == NULL
                            ? HPS_OK
                            : ops->durable->space_record_scan(lowest, read_record, &reading, err);
    if (atomic_load(&updates->sequence) > 0 && !reading.counted) {
        atomic_store(&updates->rows_updated, true); /* by an hpsd that did not count rows */
    }
    return status;
}

hps_status hps_update_open(struct hps_version *version, struct hps_error *err)
{
    HPS_ASSERT(version->n_tiers > 0);
    HPS_ASSERT(version->updates == NULL && version->stamps == NULL);
    struct hps_space *lowest = version->tiers[version->n_tiers - 1];
    version->stamps = hps_stamps_new();
    version->updates = updates_new(version->n_tables);
    version->updates_free = hps_updates_free;
    if (version->stamps == NULL || version->updates == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for the updates of a version");
    }
    hps_status status = update_versions_open(version, version->updates, err);
    if (status != HPS_OK) {
        return status;
    }
    return read_state(version, lowest, err);
}
