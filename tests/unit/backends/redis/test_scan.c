/* SPDX-License-Identifier: Apache-2.0
 *
 * All rows that HPS has written are read, whatever its servers do meanwhile; and what is not as it
 * should be is named. What HPS wrote is made by a few lines of Lua that know nothing of us.
 */
#include <inttypes.h>

#include "backends/redis/keys.h"
#include "tests/lib/fake_redis.h"
#include "tests/lib/redis_fixture.h"

enum { N_PARTS = 3, N_MASTERS = 3, N_MANY = 5000, STEP = 50 };

/* What was read of table a, each with its row. Keys from N_MANY on are of rows that were written
 * meanwhile: they may be seen. */
struct seen {
    uint32_t n_rows; /* some may come twice */
    uint32_t n_keys; /* below N_MANY */
    bool keys[2 * N_MANY];
    void (*meanwhile)(struct seen *seen); /* once, when half of the rows are there */
    struct hps_redis_rig *rig;
    hps_status answer;
};

static struct seen seen;

static hps_status take(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct seen *to = ctx;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row[FX_ROW / 8];
        assert_true(keys[i] < 2 * N_MANY);
        memcpy(row, rows + (size_t)i * FX_ROW, FX_ROW);
        assert_true(row[0] == keys[i] && row[FX_ROW / 8 - 1] == keys[i]);
        to->n_rows++;
        to->n_keys += to->keys[keys[i]] || keys[i] >= N_MANY ? 0 : 1;
        to->keys[keys[i]] = true;
    }
    if (to->meanwhile != NULL && to->n_rows >= N_MANY / 2) {
        void (*meanwhile)(struct seen *) = to->meanwhile;
        to->meanwhile = NULL;
        meanwhile(to);
    }
    return to->answer;
}

static struct hps_redis_store_options hps_options(struct hps_redis_rig *rig)
{
    struct hps_redis_store_options options = fx_options("one");
    options.redis.addresses = hps_redis_rig_addresses(rig);
    options.redis.connections_per_node = 1;
    options.layout = HPS_REDIS_LAYOUT_HPS;
    options.n_shards = N_PARTS;
    options.fields_max = STEP;
    return options;
}

/* Scan table a; nothing is known before of what was seen. */
static hps_status scan(const struct hps_redis_store_options *options, struct hps_redis_rig *rig,
                       void (*meanwhile)(struct seen *seen))
{
    struct hps_store *store = NULL;
    seen = (struct seen){.meanwhile = meanwhile, .rig = rig};
    assert_int_equal(hps_redis_open(options, &store, &fx_error), HPS_OK);
    struct hps_space *space = fx_space(store);
    hps_status status = store->ops->scan(space, &fx_tables[0], take, &seen, &fx_error);
    fx_close(space);
    return status;
}

/* Of whichever node has it. */
static void write_row(struct hps_redis_rig *rig, const char *table, uint32_t part, uint64_t key,
                      uint32_t key_bytes, uint32_t times)
{
    for (uint32_t node = 0;; node++) {
        assert_true(node < hps_redis_rig_nodes(rig));
        const char *answer =
            hps_redis_rig_ask(rig, node,
                              "EVAL "
                              "return(redis.call('HSET',KEYS[1],struct.pack('<I%" PRIu32
                              "',%" PRIu64 "),struct.pack('<I8',%" PRIu64 "):rep(%" PRIu32
                              "))) 1 hps_et{hps_et.m.%s/p%" PRIu32 "}v",
                              key_bytes, key, key, times, table, part);
        if (strcmp(answer, "1") == 0) {
            return;
        }
        assert_non_null(strstr(answer, "MOVED"));
    }
}

static void write_rows(struct hps_redis_rig *rig, uint32_t n, uint32_t key_bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        write_row(rig, "a", hps_redis_hps_part(i, key_bytes, N_PARTS), i, key_bytes, FX_ROW / 8);
        write_row(rig, "b", hps_redis_hps_part(i, key_bytes, N_PARTS), i, key_bytes, 1);
    }
}

/* Rows from key `first` on in the one partition of table a, 0. */
static void write_many(struct hps_redis_rig *rig, uint32_t first)
{
    for (uint32_t node = 0; node < hps_redis_rig_nodes(rig); node++) {
        (void)hps_redis_rig_ask(rig, node,
                                "EVAL for\ti=%" PRIu32 ",%" PRIu32
                                "\tdo\tredis.call('HSET',KEYS[1],struct.pack('<I8',"
                                "i),struct.pack('<I8',i):rep(8))end 1 hps_et{hps_et.m.a/p0}v",
                                first, first + N_MANY - 1);
    }
}

/* Hashes are tables, however small. */
static void make_tables(struct hps_redis_rig *rig)
{
    for (uint32_t node = 0; node < hps_redis_rig_nodes(rig); node++) {
        assert_string_equal(hps_redis_rig_ask(rig, node, "CONFIG SET hash-max-listpack-entries 1"),
                            "OK");
    }
}

static uint16_t slot_of_many(void)
{
    static const char name[] = "hps_et{hps_et.m.a/p0}v";
    return hps_redis_slot(name, sizeof(name) - 1);
}

/* ---- all rows -------------------------------------------------------------------------------- */

static void test_scan_when_on_one_server_then_all_rows_of_either_key_width(void **state)
{
    (void)state;
    enum { N = 500 };
    make_tables(fx_rig);
    for (uint32_t key_bytes = 4; key_bytes <= 8; key_bytes += 4) {
        struct hps_redis_store_options options = hps_options(fx_rig);
        options.key_bytes = key_bytes;
        write_rows(fx_rig, N, key_bytes);
        assert_int_equal(scan(&options, fx_rig, NULL), HPS_OK);
        assert_int_equal(seen.n_keys, N);
        (void)hps_redis_rig_ask(fx_rig, 0, "FLUSHALL");
    }
}

static void test_scan_when_hashes_are_small_or_absent_then_what_is_there(void **state)
{
    (void)state;
    const struct hps_redis_store_options options = hps_options(fx_rig);
    (void)hps_redis_rig_ask(fx_rig, 0, "CONFIG SET hash-max-listpack-entries 128");
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_OK);
    assert_int_equal(seen.n_rows, 0);
    write_row(fx_rig, "a", hps_redis_hps_part(7, 8, N_PARTS), 7, 8, 8);
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_OK);
    assert_int_equal(seen.n_rows, 1);
    assert_true(seen.keys[7]);
}

static void test_scan_when_whoever_takes_the_rows_fails_then_it_ends_with_that(void **state)
{
    (void)state;
    struct hps_redis_store_options options = hps_options(fx_rig);
    struct hps_store *store = NULL;
    options.n_shards = 1;
    make_tables(fx_rig);
    write_many(fx_rig, 0);
    seen = (struct seen){.answer = HPS_CANCELLED};
    assert_int_equal(hps_redis_open(&options, &store, &fx_error), HPS_OK);
    struct hps_space *space = fx_space(store);
    assert_int_equal(store->ops->scan(space, &fx_tables[0], take, &seen, &fx_error), HPS_CANCELLED);
    assert_true(seen.n_rows > 0 && seen.n_rows < N_MANY / 2);
    fx_close(space);
}

/* ---- meanwhile ------------------------------------------------------------------------------- */

/* With more rows in it the hash has as many that are yet to come as before: their number alone does
 * not tell that others are left out. */
static void restart(struct seen *at)
{
    write_many(at->rig, N_MANY);
    assert_string_equal(hps_redis_rig_ask(at->rig, 0, "SAVE"), "OK");
    hps_redis_rig_kill(at->rig, 0);
    hps_redis_rig_start(at->rig, 0);
}

static void test_scan_when_the_server_starts_again_then_all_rows(void **state)
{
    (void)state;
    struct hps_redis_store_options options = hps_options(fx_rig);
    options.n_shards = 1;
    make_tables(fx_rig);
    write_many(fx_rig, 0);
    assert_int_equal(scan(&options, fx_rig, restart), HPS_OK);
    assert_int_equal(seen.n_keys, N_MANY);
}

static void flush(struct seen *at)
{
    (void)hps_redis_rig_ask(at->rig, 0, "FLUSHALL");
}

static void test_scan_when_rows_go_then_it_is_no_success(void **state)
{
    (void)state;
    struct hps_redis_store_options options = hps_options(fx_rig);
    options.n_shards = 1;
    make_tables(fx_rig);
    write_many(fx_rig, 0);
    assert_int_equal(scan(&options, fx_rig, flush), HPS_DATA_LOSS);
    assert_non_null(strstr(fx_error.text, "hps_et{hps_et.m.a/p0}v: rows were deleted"));
}

static uint32_t owner_of_many(void)
{
    return (uint32_t)slot_of_many() * N_MASTERS / HPS_REDIS_SLOTS;
}

/* To the next one: the key at once, and the slot itself with `end`. */
static void migrate(struct seen *at, bool end)
{
    uint16_t slot = slot_of_many();
    uint32_t from = owner_of_many();
    uint32_t to = (from + 1) % N_MASTERS;
    write_many(at->rig, N_MANY);
    hps_redis_rig_migrate_begin(at->rig, slot, from, to);
    assert_int_equal(hps_redis_rig_migrate_keys(at->rig, slot, from, to, 10), 1);
    if (end) {
        hps_redis_rig_migrate_end(at->rig, slot, from, to);
    }
}

static void move_key(struct seen *at)
{
    migrate(at, false);
}

static void move_slot(struct seen *at)
{
    migrate(at, true);
}

static void test_scan_when_on_a_cluster_then_all_rows_while_slots_move(void **state)
{
    (void)state;
    static void (*const meanwhile[])(struct seen *) = {NULL, move_key, move_slot};
    for (size_t i = 0; i < sizeof(meanwhile) / sizeof(meanwhile[0]); i++) {
        if (!hps_redis_rig_present()) {
            skip();
        }
        struct hps_redis_rig *rig = hps_redis_rig_cluster(N_MASTERS, 0, NULL);
        struct hps_redis_store_options options = hps_options(rig);
        options.n_shards = 1;
        make_tables(rig);
        write_many(rig, 0);
        assert_int_equal(scan(&options, rig, meanwhile[i]), HPS_OK);
        assert_int_equal(seen.n_keys, N_MANY);
        hps_redis_rig_free(rig);
    }
}

static void test_scan_when_partitions_are_all_over_a_cluster_then_all_rows(void **state)
{
    (void)state;
    enum { N = 300 };
    if (!hps_redis_rig_present()) {
        skip();
    }
    struct hps_redis_rig *rig = hps_redis_rig_cluster(N_MASTERS, 0, NULL);
    const struct hps_redis_store_options options = hps_options(rig);
    write_rows(rig, N, 8);
    assert_int_equal(scan(&options, rig, NULL), HPS_OK);
    assert_int_equal(seen.n_rows, N);
    assert_int_equal(seen.n_keys, N);
    hps_redis_rig_free(rig);
}

/* ---- what is not as it should be ------------------------------------------------------------- */

static void test_scan_when_rows_are_not_as_told_then_named(void **state)
{
    (void)state;
    struct hps_redis_store_options options = hps_options(fx_rig);
    write_rows(fx_rig, 100, 8);
    options.n_shards = N_PARTS + 2;
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_INVALID);
    assert_non_null(strstr(fx_error.text, "another num_partitions than 5"));
    options.n_shards = N_PARTS;
    options.key_bytes = 4;
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_INVALID);
    assert_non_null(strstr(fx_error.text, "a key of 8 bytes, expected 4, as supportlonglong says"));
    options.key_bytes = 8;
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_OK);
    write_row(fx_rig, "a", hps_redis_hps_part(1000, 8, N_PARTS), 1000, 8, 7);
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_INVALID);
    assert_non_null(
        strstr(fx_error.text, "the row of key 1000 has 56 bytes, expected 64 (width 16)"));
    assert_non_null(strstr(fx_error.text, "table 'a', hps_et{hps_et.m.a/p"));
}

/* With 3 instead of 6 each row that is seen is where it belongs: half of them are not seen. */
static void test_scan_when_there_are_more_partitions_then_named(void **state)
{
    (void)state;
    struct hps_redis_store_options options = hps_options(fx_rig);
    for (uint32_t i = 0; i < 100; i++) {
        write_row(fx_rig, "a", hps_redis_hps_part(i, 8, 2 * N_PARTS), i, 8, 8);
    }
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_INVALID);
    assert_non_null(strstr(fx_error.text, "beyond num_partitions, 3"));
    options.n_shards = 2 * N_PARTS;
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_OK);
    assert_int_equal(seen.n_keys, 100);
}

static void test_scan_when_it_is_no_hash_then_named(void **state)
{
    (void)state;
    const struct hps_redis_store_options options = hps_options(fx_rig);
    (void)hps_redis_rig_ask(fx_rig, 0, "SET hps_et{hps_et.m.a/p1}v x");
    assert_int_equal(scan(&options, fx_rig, NULL), HPS_INVALID);
    assert_non_null(strstr(fx_error.text, "p1}v: WRONGTYPE"));
}

/* Rows, and a cursor that is never 0. */
static enum hps_fake_redis_then answer_for_ever(void *ctx, uint32_t node, const char *command,
                                                char *out_answer)
{
    (void)ctx;
    (void)node;
    if (strncmp(command, "HLEN", 4) == 0) {
        bool first = strstr(command, "m.a/p0}") != NULL;
        (void)snprintf(out_answer, HPS_FAKE_REDIS_ANSWER_MAX, ":%d\r\n", first ? 2 : 0);
        return HPS_FAKE_REDIS_GO_ON;
    }
    if (strncmp(command, "HSCAN", 5) == 0) {
        (void)snprintf(out_answer, HPS_FAKE_REDIS_ANSWER_MAX, "*2\r\n$1\r\n7\r\n*0\r\n");
        return HPS_FAKE_REDIS_GO_ON;
    }
    return hps_fake_redis_alone(ctx, node, command, out_answer);
}

static void test_scan_when_the_cursor_never_ends_then_it_ends_with_an_error(void **state)
{
    (void)state;
    struct hps_fake_redis *fake = hps_fake_redis_new(1, answer_for_ever, NULL);
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    options.redis.addresses = hps_fake_redis_address(fake, 0);
    options.layout = HPS_REDIS_LAYOUT_HPS;
    options.n_shards = 1;
    options.fields_max = STEP;
    assert_int_equal(scan(&options, NULL, NULL), HPS_IO);
    assert_non_null(strstr(fx_error.text, "m.a/p0}v: HSCAN does not end"));
    hps_fake_redis_free(fake);
}

static void test_scan_when_nobody_answers_then_unavailable(void **state)
{
    (void)state;
    struct hps_redis_store_options options = HPS_REDIS_STORE_DEFAULT;
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", hps_redis_rig_free_port());
    options.redis.addresses = address;
    options.redis.connect_timeout_us = 10 * 1000;
    options.layout = HPS_REDIS_LAYOUT_HPS;
    assert_int_equal(scan(&options, NULL, NULL), HPS_UNAVAILABLE);
    assert_non_null(strstr(fx_error.text, address));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_scan_when_on_one_server_then_all_rows_of_either_key_width,
                               fx_clean),
        cmocka_unit_test_setup(test_scan_when_hashes_are_small_or_absent_then_what_is_there,
                               fx_clean),
        cmocka_unit_test_setup(test_scan_when_whoever_takes_the_rows_fails_then_it_ends_with_that,
                               fx_clean),
        cmocka_unit_test_setup(test_scan_when_the_server_starts_again_then_all_rows, fx_clean),
        cmocka_unit_test_setup(test_scan_when_rows_go_then_it_is_no_success, fx_clean),
        cmocka_unit_test(test_scan_when_on_a_cluster_then_all_rows_while_slots_move),
        cmocka_unit_test(test_scan_when_partitions_are_all_over_a_cluster_then_all_rows),
        cmocka_unit_test_setup(test_scan_when_rows_are_not_as_told_then_named, fx_clean),
        cmocka_unit_test_setup(test_scan_when_there_are_more_partitions_then_named, fx_clean),
        cmocka_unit_test_setup(test_scan_when_it_is_no_hash_then_named, fx_clean),
        cmocka_unit_test(test_scan_when_the_cursor_never_ends_then_it_ends_with_an_error),
        cmocka_unit_test(test_scan_when_nobody_answers_then_unavailable),
    };
    return cmocka_run_group_tests(tests, fx_start, fx_stop);
}
