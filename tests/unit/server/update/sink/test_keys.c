/* SPDX-License-Identifier: Apache-2.0
 *
 * Keyed records with big-endian or text keys, on a stream over scripted stores.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/stream_rig.h"

enum { ROWS = 600 };

enum encoding { LITTLE, BIG, TEXT };

/* Open the stream of a version that has rows of the keys 1 to ROWS. */
static void load(struct rig *rig)
{
    static hps_key keys[ROWS];
    static const float rows[ROWS][FIXTURE_DIM];
    struct hps_error err = {0};
    for (uint32_t i = 0; i < ROWS; i++) {
        keys[i] = i + 1;
    }
    const struct hps_update_part part = {.table_id = FIXTURE_ITEMS,
                                         .row_bytes = sizeof(rows[0]),
                                         .n = ROWS,
                                         .keys = keys,
                                         .rows = (const uint8_t *)rows};
    const struct hps_update_batch batch = {.parts = &part, .n_parts = 1};
    begin(rig, 0);
    assert_int_equal(hps_update_apply(rig->fx.version, &batch, &err), HPS_OK);
}

static void send(struct rig *rig, enum encoding encoding, hps_key key, bool deletes)
{
    const float row[FIXTURE_DIM] = {1, 1};
    hps_key swapped = __builtin_bswap64(key);
    char text[24];
    snprintf(text, sizeof(text), "%08u", (unsigned)key);
    const struct hps_fake_record record = {.key = encoding == LITTLE ? (const void *)&key
                                                  : encoding == BIG  ? (const void *)&swapped
                                                                     : text,
                                           .key_size = 8,
                                           .value = deletes ? NULL : row,
                                           .value_size = deletes ? 0 : sizeof(row)};
    hps_fake_log_append(rig->log, ITEMS, 0, &record);
}

/* The keys from `first` to `last`; every `step`-th little-endian, none if 0. */
static void send_all(struct rig *rig, enum encoding encoding, hps_key first, hps_key last,
                     unsigned step, bool deletes)
{
    for (hps_key key = first; key <= last; key++) {
        send(rig, step > 0 && key % step == 0 ? LITTLE : encoding, key, deletes);
    }
    turns(rig, 20);
}

static bool misencoded(const struct rig *rig)
{
    return strstr(rig->stream->view->partitions[0].reason, "keys misencoded") != NULL;
}

static void test_keys_when_in_another_encoding_then_logged_and_counted(void **state)
{
    static const struct {
        enum encoding encoding;
        hps_key first, last;
        unsigned step;
        bool deletes, narrow;
        double n_counted;
        bool misencoded;
    } cases[] = {
        {LITTLE, 1, 300, .misencoded = false},
        {BIG, 1, 300, .n_counted = 300, .misencoded = true},
        {TEXT, 1, 300, .n_counted = 300, .misencoded = true},
        {BIG, 1, 300, .deletes = true, .n_counted = 300, .misencoded = true},
        {BIG, 1, 300, .narrow = true, .n_counted = 300, .misencoded = true},
        {LITTLE, 1, 300, .narrow = true, .misencoded = false},
        {BIG, 1, 255, .n_counted = 255, .misencoded = false},
        {BIG, 1, 300, .step = 10, .n_counted = 270, .misencoded = false},
        {LITTLE, ROWS + 1, ROWS + 300, .misencoded = false}, /* new keys */
        {BIG, ROWS + 1, ROWS + 300, .misencoded = false},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_open();
        rig->config.key_bytes = cases[i].narrow ? 4 : 8;
        load(rig);
        send_all(rig, cases[i].encoding, cases[i].first, cases[i].last, cases[i].step,
                 cases[i].deletes);
        const struct hps_metric *counted =
            hps_server_metric(rig->metrics, HPS_M_UPDATE_MISENCODED_KEYS, "m", NULL, NULL, NULL);
        assert_true(hps_metric_value(counted) == cases[i].n_counted);
        assert_int_equal(misencoded(rig), cases[i].misencoded);
        rig_close(rig);
    }
}

static void test_keys_when_the_producer_is_corrected_then_not_reported(void **state)
{
    struct rig *rig = *state;
    static char log[1 << 16];
    int log_fd = memfd_create("log", 0);
    hps_log_setup(HPS_LOG_WARN, HPS_LOG_JSON, log_fd);
    load(rig);
    for (unsigned i = 0; i < 2; i++) {
        send_all(rig, BIG, 1, 256, 0, true);
        assert_true(misencoded(rig));
        send_all(rig, LITTLE, 1, 256, 0, false);
    }
    assert_false(misencoded(rig));
    hps_log_setup(HPS_LOG_ERROR, HPS_LOG_JSON, STDERR_FILENO);
    assert_true(pread(log_fd, log, sizeof(log) - 1, 0) > 0);
    const char *warning = strstr(log, "keys misencoded");
    assert_non_null(warning);
    assert_non_null(strstr(warning, "big-endian"));
    assert_null(strstr(warning + 1, "keys misencoded")); /* once */
    close(log_fd);
}

/* Later, one key of 256 is sampled. */
static void test_keys_when_misencoded_later_then_a_sample_finds_it(void **state)
{
    struct rig *rig = *state;
    rig->config.update_source.max_batch_size = 100000;
    load(rig);
    for (unsigned i = 0; i < 2; i++) {
        send_all(rig, LITTLE, 1, ROWS, 0, false);
    }
    for (unsigned i = 0; i < 250 && !misencoded(rig); i++) {
        send_all(rig, BIG, 1, ROWS, 0, true);
    }
    assert_true(misencoded(rig));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_when_in_another_encoding_then_logged_and_counted),
        cmocka_unit_test_setup_teardown(test_keys_when_the_producer_is_corrected_then_not_reported,
                                        rig_setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_when_misencoded_later_then_a_sample_finds_it,
                                        rig_setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
