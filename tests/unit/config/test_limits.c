/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and CPU limits, read from a made-up root directory.
 */
#include "tests/unit/config/config_test.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/limits.h"
#include "tests/lib/tmpdir.h"

static int open_root(void **state)
{
    static struct hps_tmpdir root;
    hps_tmpdir_open(&root);
    *state = &root;
    return 0;
}

static int close_root(void **state)
{
    hps_tmpdir_close(*state);
    return 0;
}

static void put(const struct hps_tmpdir *root, const char *name, const char *text)
{
    char path[2 * HPS_TMPDIR_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s%s", root->path, name);
    for (char *slash = path + strlen(root->path) + 1; (slash = strchr(slash, '/')) != NULL;
         slash++) {
        *slash = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_memory_when_nothing_is_known_then_a_safe_guess(void **state)
{
    const struct hps_tmpdir *root = *state;
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(1) << 30);
    assert_true(hps_limits_cpus_at(root->path) >= 1);
}

static void test_memory_when_no_cgroup_then_ram(void **state)
{
    const struct hps_tmpdir *root = *state;
    put(root, "/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(16) << 30);
}

static void test_memory_when_a_group_above_is_tighter_then_it_wins(void **state)
{
    const struct hps_tmpdir *root = *state;
    put(root, "/proc/meminfo", "MemTotal: 16777216 kB\n");
    put(root, "/proc/self/cgroup", "0::/system.slice/hpsd.service\n");
    put(root, "/sys/fs/cgroup/system.slice/hpsd.service/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(1) << 30);
}

static void test_memory_when_the_path_is_the_hosts_then_the_mount_counts(void **state)
{
    const struct hps_tmpdir *root = *state;
    put(root, "/proc/meminfo", "MemTotal: 16777216 kB\n");
    put(root, "/proc/self/cgroup", "0::/kubepods/pod1/container\n");
    put(root, "/sys/fs/cgroup/memory.max", "2147483648\n");
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(2) << 30);
}

static void test_memory_when_version_1_then_its_file(void **state)
{
    const struct hps_tmpdir *root = *state;
    put(root, "/proc/meminfo", "MemTotal: 16777216 kB\n");
    put(root, "/proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/a\n");
    put(root, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(16) << 30);
    put(root, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n");
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(512) << 20);
}

static void test_memory_when_files_are_garbage_then_no_limit(void **state)
{
    const struct hps_tmpdir *root = *state;
    put(root, "/proc/meminfo", "MemTotal: 16777216 kB\n");
    put(root, "/proc/self/cgroup", "what\n0\n::\n0::/x\n");
    put(root, "/sys/fs/cgroup/x/memory.max", "");
    put(root, "/sys/fs/cgroup/memory.max", "lots\n");
    assert_int_equal(hps_limits_memory_bytes_at(root->path), UINT64_C(16) << 30);
}

static void test_cpus_when_quota_then_rounded_up(void **state)
{
    const struct hps_tmpdir *root = *state;
    put(root, "/proc/self/cgroup", "0::/x\n");
    put(root, "/sys/fs/cgroup/x/cpu.max", "50000 100000\n");
    assert_int_equal(hps_limits_cpus_at(root->path), 1);
    uint32_t all = hps_limits_cpus();
    put(root, "/sys/fs/cgroup/x/cpu.max", "max 100000\n");
    assert_true(hps_limits_cpus_at(root->path) >= all);
    put(root, "/proc/self/cgroup", "3:cpu,cpuacct:/a\n");
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(hps_limits_cpus_at(root->path), 1);
    put(root, "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    assert_true(hps_limits_cpus_at(root->path) >= all);
}

static void test_limits_when_this_machine_then_plausible(void **state)
{
    (void)state;
    assert_true(hps_limits_memory_bytes() >= (UINT64_C(16) << 20));
    assert_true(hps_limits_cpus() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory_when_nothing_is_known_then_a_safe_guess,
                                        open_root, close_root),
        cmocka_unit_test_setup_teardown(test_memory_when_no_cgroup_then_ram, open_root, close_root),
        cmocka_unit_test_setup_teardown(test_memory_when_a_group_above_is_tighter_then_it_wins,
                                        open_root, close_root),
        cmocka_unit_test_setup_teardown(
            test_memory_when_the_path_is_the_hosts_then_the_mount_counts, open_root, close_root),
        cmocka_unit_test_setup_teardown(test_memory_when_version_1_then_its_file, open_root,
                                        close_root),
        cmocka_unit_test_setup_teardown(test_memory_when_files_are_garbage_then_no_limit, open_root,
                                        close_root),
        cmocka_unit_test_setup_teardown(test_cpus_when_quota_then_rounded_up, open_root,
                                        close_root),
        cmocka_unit_test(test_limits_when_this_machine_then_plausible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
