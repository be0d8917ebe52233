/* SPDX-License-Identifier: Apache-2.0
 *
 * The listener reports RocksDB's health events with their numbers, and the end of an error. Uses
 * the installed RocksDB.
 */
#include <pthread.h>
#include <rocksdb/c.h>

#include "backends/rocksdb/listener.h"
#include "tests/lib/failing_disk.h"
#include "tests/unit/backends/rocksdb/rocksdb_test.h"

enum { EVENTS_MAX = 64 };

/* A database and the events that it reported. */
struct rig {
    rocksdb_options_t *options;
    rocksdb_t *db;
    rocksdb_writeoptions_t *write;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n;
    struct hps_rocksdb_event events[EVENTS_MAX]; /* without their texts */
    char families[EVENTS_MAX][32];
    char first_words[EVENTS_MAX][48];
};

static void record_event(void *ctx, const struct hps_rocksdb_event *event)
{
    struct rig *rig = ctx;
    pthread_mutex_lock(&rig->lock);
    if (rig->n < EVENTS_MAX) {
        rig->events[rig->n] = *event;
        (void)snprintf(rig->families[rig->n], sizeof(rig->families[0]), "%s",
                       event->family != NULL ? event->family : "");
        (void)snprintf(rig->first_words[rig->n], sizeof(rig->first_words[0]), "%s", event->text);
        rig->n++;
    }
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->lock);
}

/* Wait for the first event of this kind. Returns its index. */
static unsigned wait_for(struct rig *rig, enum hps_rocksdb_event_kind kind)
{
    unsigned i = 0;
    pthread_mutex_lock(&rig->lock);
    for (;;) {
        for (; i < rig->n && rig->events[i].kind != kind; i++) {
        }
        if (i < rig->n) {
            break;
        }
        pthread_cond_wait(&rig->changed, &rig->lock);
    }
    pthread_mutex_unlock(&rig->lock);
    return i;
}

static unsigned count(struct rig *rig, enum hps_rocksdb_event_kind kind)
{
    unsigned n = 0;
    pthread_mutex_lock(&rig->lock);
    for (unsigned i = 0; i < rig->n; i++) {
        n += rig->events[i].kind == kind;
    }
    pthread_mutex_unlock(&rig->lock);
    return n;
}

static rocksdb_options_t *options_with(const char *text, hps_rocksdb_event_fn *fn, void *ctx,
                                       bool *out_made)
{
    char *failed = NULL;
    rocksdb_options_t *base = rocksdb_options_create();
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(base, 1);
    rocksdb_options_set_compression(base, rocksdb_no_compression);
    rocksdb_options_set_paranoid_checks(base, 1);
    if (fn != NULL) {
        hps_rocksdb_listener_offer(fn, ctx);
    }
    rocksdb_get_options_from_string(base, text, options, &failed);
    *out_made = hps_rocksdb_listener_made();
    rocksdb_options_destroy(base);
    rocksdb_free(failed);
    return options;
}

static void rig_open(struct rig *rig)
{
    char *text = NULL;
    bool made = false;
    *rig = (struct rig){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    rig->options = options_with("listeners=" HPS_ROCKSDB_LISTENER, record_event, rig, &made);
    assert_true(made);
    rig->write = rocksdb_writeoptions_create();
    rig->db = rocksdb_open(rig->options, below("hpsd"), &text);
    assert_null(text);
}

static void rig_close(struct rig *rig)
{
    failing_disk_repair();
    rocksdb_close(rig->db);
    rocksdb_writeoptions_destroy(rig->write);
    rocksdb_options_destroy(rig->options);
    pthread_cond_destroy(&rig->changed);
    pthread_mutex_destroy(&rig->lock);
}

/* Returns whether the row of `key` was written. */
static bool write_row(struct rig *rig, rocksdb_column_family_handle_t *family, uint32_t key)
{
    char *text = NULL;
    uint8_t row[ROW_BYTES];
    fill(row, key);
    if (family != NULL) {
        rocksdb_put_cf(rig->db, rig->write, family, (const char *)&key, sizeof(key),
                       (const char *)row, sizeof(row), &text);
    } else {
        rocksdb_put(rig->db, rig->write, (const char *)&key, sizeof(key), (const char *)row,
                    sizeof(row), &text);
    }
    bool taken = text == NULL;
    rocksdb_free(text);
    return taken;
}

static void test_error_when_the_disk_is_full_under_the_wal_then_begin_and_end_are_reported(
    void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    assert_true(write_row(&rig, NULL, 1));
    atomic_store(&failing_disk.wal_write_errno, ENOSPC);
    assert_false(write_row(&rig, NULL, 2));
    unsigned i = wait_for(&rig, HPS_ROCKSDB_ERROR);
    assert_int_equal(rig.events[i].reason, HPS_ROCKSDB_REASON_WAL);
    assert_int_equal(rig.events[i].code, HPS_ROCKSDB_CODE_IO_ERROR);
    assert_int_equal(rig.events[i].subcode, HPS_ROCKSDB_SUBCODE_NO_SPACE);
    assert_int_equal(rig.events[i].severity, HPS_ROCKSDB_SEVERITY_HARD);
    assert_int_equal(strncmp(rig.first_words[i], "IO error: No space left on device", 33), 0);
    assert_true(wait_for(&rig, HPS_ROCKSDB_RECOVERY_BEGUN) > i);
    failing_disk_repair();
    i = wait_for(&rig, HPS_ROCKSDB_RECOVERY_ENDED);
    assert_int_equal(rig.events[i].code, HPS_ROCKSDB_CODE_OK);
    assert_true(write_row(&rig, NULL, 3));
    rig_close(&rig);
}

static void test_error_when_the_wal_cannot_be_written_then_reported_as_permanent(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    atomic_store(&failing_disk.wal_write_errno, EIO);
    assert_false(write_row(&rig, NULL, 1));
    unsigned i = wait_for(&rig, HPS_ROCKSDB_ERROR);
    assert_int_equal(rig.events[i].reason, HPS_ROCKSDB_REASON_WAL);
    assert_int_equal(rig.events[i].code, HPS_ROCKSDB_CODE_IO_ERROR);
    assert_int_equal(rig.events[i].subcode, HPS_ROCKSDB_SUBCODE_NONE);
    assert_int_equal(rig.events[i].severity, HPS_ROCKSDB_SEVERITY_FATAL);
    failing_disk_repair();
    assert_false(write_row(&rig, NULL, 2));
    assert_int_equal(count(&rig, HPS_ROCKSDB_RECOVERY_BEGUN), 0);
    rig_close(&rig);
}

/* A compaction merges two damaged files with the same keys. */
static void test_error_when_a_compaction_finds_damage_then_its_family_is_reported(void **state)
{
    (void)state;
    struct rig rig;
    char *text = NULL;
    rig_open(&rig);
    rocksdb_column_family_handle_t *family =
        rocksdb_create_column_family(rig.db, rig.options, "m@1", &text);
    assert_null(text);
    rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
    for (unsigned file = 0; file < 2; file++) {
        for (uint32_t key = 0; key < 2000; key++) {
            assert_true(write_row(&rig, family, key));
        }
        rocksdb_flush_cf(rig.db, flush, family, &text);
        assert_null(text);
    }
    rocksdb_flushoptions_destroy(flush);
    assert_int_equal(damage_files(), 2);
    rocksdb_compact_range_cf(rig.db, family, NULL, 0, NULL, 0);
    unsigned compaction = wait_for(&rig, HPS_ROCKSDB_COMPACTION_FAILED);
    assert_string_equal(rig.families[compaction], "m@1");
    assert_int_equal(rig.events[compaction].code, HPS_ROCKSDB_CODE_CORRUPTION);
    unsigned error_at = wait_for(&rig, HPS_ROCKSDB_ERROR);
    assert_int_equal(rig.events[error_at].reason, HPS_ROCKSDB_REASON_COMPACTION);
    assert_int_equal(rig.events[error_at].code, HPS_ROCKSDB_CODE_CORRUPTION);
    assert_int_equal(rig.events[error_at].severity, HPS_ROCKSDB_SEVERITY_UNRECOVERABLE);
    rocksdb_column_family_handle_destroy(family);
    rig_close(&rig);
}

static void test_listener_when_none_is_offered_then_none_is_made(void **state)
{
    (void)state;
    bool made = true;
    rocksdb_options_destroy(options_with("listeners=" HPS_ROCKSDB_LISTENER, NULL, NULL, &made));
    assert_false(made);
    rocksdb_options_destroy(options_with("max_open_files=-1", record_event, NULL, &made));
    assert_false(made);
    rocksdb_options_destroy(options_with("listeners=" HPS_ROCKSDB_LISTENER, NULL, NULL, &made));
    assert_false(made); /* the offer has ended */
}

/* RocksDB stores its options in the database directory. Options that name a listener could not
 * be read again. */
static void test_listener_when_the_database_is_open_then_its_options_do_not_name_it(void **state)
{
    (void)state;
    struct rig rig;
    char *text = NULL;
    rig_open(&rig);
    rig_close(&rig);
    size_t n = 0;
    rocksdb_options_t *read = NULL;
    rocksdb_options_t **of_families = NULL;
    char **names = NULL;
    rocksdb_env_t *env = rocksdb_create_default_env();
    rocksdb_cache_t *cache = rocksdb_cache_create_lru(1 << 20);
    rocksdb_load_latest_options(below("hpsd"), env, false, cache, &read, &n, &names, &of_families,
                                &text);
    assert_null(text);
    assert_int_equal(n, 1);
    rocksdb_load_latest_options_destroy(read, names, of_families, n);
    rocksdb_cache_destroy(cache);
    rocksdb_env_destroy(env);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_error_when_the_disk_is_full_under_the_wal_then_begin_and_end_are_reported),
        T(test_error_when_the_wal_cannot_be_written_then_reported_as_permanent),
        T(test_error_when_a_compaction_finds_damage_then_its_family_is_reported),
        T(test_listener_when_none_is_offered_then_none_is_made),
        T(test_listener_when_the_database_is_open_then_its_options_do_not_name_it),
    };
    return cmocka_run_group_tests_name("rocksdb_listener", tests, NULL, NULL);
}
