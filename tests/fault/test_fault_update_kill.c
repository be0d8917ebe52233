/* SPDX-License-Identifier: Apache-2.0
 *
 * kill -9 while updates are applied: a child applies a stream of batches, each a function of its
 * number, over RocksDB and the host map, and is killed again and again. After each kill another
 * process finds every row as the stream left it at the stored position, which is no earlier than
 * the last batch that the child said it had published.
 *
 * HPS_KILLS sets how many times (60).
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "backends/host/map.h"
#include "backends/rocksdb/rocksdb.h"
#include "base/hash.h"
#include "base/heap.h"
#include "cache/update/update.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/work.h"

enum {
    N_TABLES = 2,
    N_KEYS = 400,
    KEYS_MAX = 60,
    DIM = 59, /* INT8, so that the next row lies at any address */
    ROW_BYTES = DIM + 8,
    N_KILLS = HPS_TEST_WORK(60),
    BATCHES_MAX = 40
};
enum { EXIT_WRONG = 3 };

static const struct hps_call no_limit = {0};
static const char *const names[N_TABLES] = {"a", "b"};

static uint64_t draw(uint64_t *seed)
{
    *seed += HPS_HASH_GOLDEN;
    return hps_mix64(*seed);
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* Batch `number`: some rows and some deletes of one table, rows of the other. */
struct batch {
    hps_key keys[3][KEYS_MAX];
    uint8_t rows[3][KEYS_MAX][ROW_BYTES];
    struct hps_update_part parts[3];
    char position[24];
    struct hps_record records[2];
};

/* It begins with the number; every byte depends on both. */
static void fill_row(uint8_t *row, hps_key key, uint64_t number)
{
    const uint64_t words[2] = {number, key};
    for (unsigned i = 0; i < ROW_BYTES; i++) {
        row[i] = ((const uint8_t *)words)[i % sizeof(words)];
    }
}

static hps_key key_of(uint64_t index)
{
    return index % 2 == 0 ? index : UINT64_MAX - index;
}

static void make_batch(uint64_t number, struct batch *batch)
{
    uint64_t seed = number * 1000003;
    uint32_t first = (uint32_t)(draw(&seed) % N_TABLES);
    for (unsigned p = 0; p < 3; p++) {
        bool deletes = p == 1;
        batch->parts[p] = (struct hps_update_part){
            .table_id = p < 2 ? first : 1 - first,
            .row_bytes = sizeof(batch->rows[p][0]),
            .n = (uint32_t)(draw(&seed) % (deletes ? KEYS_MAX / 6 : KEYS_MAX)),
            .keys = batch->keys[p],
            .rows = deletes ? NULL : (const uint8_t *)batch->rows[p]};
        for (uint32_t i = 0; i < batch->parts[p].n; i++) {
            hps_key key = key_of(draw(&seed) % N_KEYS); /* may come again: the last one counts */
            batch->keys[p][i] = key;
            fill_row(batch->rows[p][i], key, number);
        }
    }
    int size =
        snprintf(batch->position, sizeof(batch->position), "%llu", (unsigned long long)number);
    batch->records[0] = (struct hps_record){"p0", 2, batch->position, (size_t)size};
    batch->records[1] = (struct hps_record){"p1", 2, batch->position, (size_t)size};
}

/* What a key is of after the batches up to one: the number of its last put, 0: not there. */
struct model {
    uint64_t numbers[N_TABLES][N_KEYS];
};

static uint64_t index_of(hps_key key)
{
    return key < N_KEYS ? key : UINT64_MAX - key;
}

static void replay(struct model *model, uint64_t n_batches)
{
    struct batch batch;
    memset(model, 0, sizeof(*model));
    for (uint64_t number = 1; number <= n_batches; number++) {
        make_batch(number, &batch);
        for (unsigned p = 0; p < 3; p++) {
            const struct hps_update_part *part = &batch.parts[p];
            for (uint32_t i = 0; i < part->n; i++) {
                model->numbers[part->table_id][index_of(part->keys[i])] =
                    part->rows == NULL ? 0 : number;
            }
        }
    }
}

/* ---- the version, in a child ----------------------------------------------------------------- */

struct tiers {
    struct hps_store *stores[2];
    struct hps_version *version;
};

static void need(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        _exit(EXIT_WRONG);
    }
}

static void open_tiers(struct tiers *tiers, const char *dir)
{
    const struct hps_rocksdb_options disk = {.path = dir,
                                             .n_threads = 2,
                                             .batch_keys_max = 64,
                                             .disk_free_min_bytes = 1 << 20,
                                             .block_cache_bytes = 1 << 20,
                                             .wal_sync_ms = 1000};
    struct hps_error err = {0};
    need(hps_host_map_open(UINT64_C(64) << 20, &tiers->stores[0], &err) == HPS_OK, err.text);
    need(hps_rocksdb_open(&disk, &tiers->stores[1], &err) == HPS_OK, err.text);
    tiers->version = hps_version_new("m", 1, N_TABLES);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        tiers->version->tables[i] = (struct hps_table){.name = hps_strdup(names[i]),
                                                       .id = i,
                                                       .dim = DIM,
                                                       .row_bytes = ROW_BYTES,
                                                       .dtype = HPS_DTYPE_INT8_ROWWISE_F32};
    }
    const struct hps_space_id id = {"m", 1, tiers->version->tables, N_TABLES, 0};
    for (uint32_t i = 0; i < 2; i++) {
        need(tiers->stores[i]->ops->space_open(tiers->stores[i], &id, &tiers->version->tiers[i],
                                               &err) == HPS_OK,
             err.text);
        tiers->version->n_tiers++;
    }
    need(hps_update_open(tiers->version, &err) == HPS_OK, err.text);
    hps_version_pin(tiers->version);
}

static void close_tiers(struct tiers *tiers)
{
    hps_version_unpin(tiers->version);
    for (uint32_t i = 0; i < 2; i++) {
        tiers->stores[i]->ops->space_close(tiers->version->tiers[i]);
        tiers->stores[i]->ops->close(tiers->stores[i]);
    }
    hps_version_free(tiers->version);
}

/* Number of the batch that a tier has the row of; 0: no row. */
static uint64_t number_in(struct tiers *tiers, uint32_t tier, uint32_t table, hps_key key)
{
    uint8_t row[ROW_BYTES];
    uint8_t expected[ROW_BYTES];
    uint64_t number;
    hps_key asked = key;
    uint32_t slot = 0;
    struct hps_batch batch = {.keys = &asked, .slots = &slot, .rows = row, .n = 1};
    struct hps_space *space = tiers->version->tiers[tier];
    need(space->store->ops->get(space, &no_limit, &tiers->version->tables[table], &batch) == HPS_OK,
         "get failed");
    if (batch.n == 1) {
        return 0;
    }
    memcpy(&number, row, sizeof(number));
    fill_row(expected, key, number);
    need(memcmp(row, expected, sizeof(row)) == 0, "a row is torn");
    return number;
}

/* Apply batches for ever, and say after each that it is published. */
_Noreturn static void run_apply(const char *dir)
{
    struct tiers tiers;
    struct batch batch;
    struct hps_error err = {0};
    open_tiers(&tiers, dir);
    for (;;) {
        make_batch(hps_update_sequence(tiers.version) + 1, &batch);
        const struct hps_update_batch update = {.parts = batch.parts,
                                                .n_parts = 3,
                                                .positions = batch.records,
                                                .n_positions = 2,
                                                .nan_allowed = true};
        need(hps_update_apply(tiers.version, &update, &err) == HPS_OK, err.text);
        for (unsigned p = 0; p < 3; p++) {
            const struct hps_update_part *part = &batch.parts[p];
            for (uint32_t i = 0; i < part->n; i++) {
                need(number_in(&tiers, 0, part->table_id, part->keys[i]) ==
                         number_in(&tiers, 1, part->table_id, part->keys[i]),
                     "the host map has another row than the disk");
            }
        }
        need(write(STDOUT_FILENO, "b", 1) == 1, "nobody listens");
    }
}

static hps_status check_position(void *ctx, const void *key, size_t key_size, const void *value,
                                 size_t value_size)
{
    const struct batch *batch = ctx;
    (void)key;
    need(key_size == 2, "a position that was never applied");
    need(value_size == batch->records[0].value_size &&
             memcmp(value, batch->position, value_size) == 0,
         "a position is not that of the rows");
    return HPS_OK;
}

/* Compare everything with the stream up to the stored position; say which that is. */
static int run_check(const char *dir)
{
    struct tiers tiers;
    struct batch batch;
    struct model model;
    open_tiers(&tiers, dir);
    uint64_t sequence = hps_update_sequence(tiers.version);
    make_batch(sequence, &batch);
    need(hps_update_positions(tiers.version, check_position, &batch) == HPS_OK, "positions");
    replay(&model, sequence);
    for (uint32_t table = 0; table < N_TABLES; table++) {
        for (uint64_t i = 0; i < N_KEYS; i++) {
            uint64_t found = number_in(&tiers, 1, table, key_of(i));
            if (found != model.numbers[table][i]) {
                fprintf(stderr, "table %s key %lld: of batch %llu, expected %llu at %llu\n",
                        names[table], (long long)key_of(i), (unsigned long long)found,
                        (unsigned long long)model.numbers[table][i], (unsigned long long)sequence);
                _exit(EXIT_WRONG);
            }
        }
    }
    need(write(STDOUT_FILENO, &sequence, sizeof(sequence)) == sizeof(sequence), "nobody listens");
    close_tiers(&tiers);
    return 0;
}

/* ---- the parent ------------------------------------------------------------------------------ */

extern char **environ;

/* This program again, as `role`; its standard output can be read from *out_fd. */
static pid_t start(const char *role, const char *dir, int *out_fd)
{
    int fds[2];
    pid_t pid;
    char *const args[] = {(char *)"update_kill", (char *)role, (char *)dir, NULL};
    posix_spawn_file_actions_t actions;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, args, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    *out_fd = fds[0];
    return pid;
}

/* Let a child publish some batches, kill it somewhere behind; returns how many it published. */
static uint64_t apply_and_kill(const char *dir, uint64_t *seed)
{
    int fd;
    int status;
    char byte;
    uint64_t n_published = 0;
    uint64_t n_wanted = draw(seed) % BATCHES_MAX;
    pid_t pid = start("apply", dir, &fd);
    while (n_published < n_wanted && read(fd, &byte, 1) == 1) {
        n_published++;
    }
    for (uint64_t n = draw(seed) % 2000; n > 0; n--) {
        (void)getppid(); /* a while, without looking at a clock */
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    while (read(fd, &byte, 1) == 1) {
        n_published++;
    }
    close(fd);
    return n_published;
}

static uint64_t check(const char *dir)
{
    int fd;
    int status;
    uint64_t sequence = 0;
    pid_t pid = start("check", dir, &fd);
    ssize_t size = read(fd, &sequence, sizeof(sequence));
    close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(size, sizeof(sequence));
    return sequence;
}

static void test_updates_when_killed_anywhere_then_rows_are_those_of_the_position(void **state)
{
    (void)state;
    const char *kills = getenv("HPS_KILLS");
    unsigned long n_kills = kills == NULL ? N_KILLS : strtoul(kills, NULL, 10);
    struct hps_tmpdir dir;
    uint64_t seed = (uint64_t)getpid();
    uint64_t sequence = 0;
    uint64_t n_unsaid = 0; /* kills between the durable write and the child's word */
    print_message("seed %llu\n", (unsigned long long)seed);
    hps_tmpdir_open(&dir);
    for (unsigned long i = 0; i < n_kills; i++) {
        uint64_t n_published = apply_and_kill(dir.path, &seed);
        uint64_t now = check(dir.path);
        assert_in_range(now, sequence + n_published, sequence + n_published + 1);
        n_unsaid += now - sequence - n_published;
        sequence = now;
    }
    print_message("%lu kills, %llu batches, %llu written but not yet published\n", n_kills,
                  (unsigned long long)sequence, (unsigned long long)n_unsaid);
    assert_true(sequence > n_kills);
    hps_tmpdir_close(&dir);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "apply") == 0) {
        run_apply(argv[2]);
    }
    if (argc == 3) {
        return run_check(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_when_killed_anywhere_then_rows_are_those_of_the_position),
    };
    return cmocka_run_group_tests_name("update_kill", tests, NULL, NULL);
}
