/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and CPU limits from /proc and from control groups, versions 2 and 1. Runs at start on the
 * main thread. A missing or malformed file means no limit; the whole machine is the upper bound.
 */
#include "config/limits.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

enum { PATH_CHARS = 4096, LINE_CHARS = 4352, CGROUP_DEPTH_MAX = 32 };

/* If nothing is known: small enough for any machine. */
static const uint64_t memory_bytes_unknown = UINT64_C(1) << 30;

/* Read the first line of root + dir + name into `line`. */
static bool read_line(const char *root, const char *dir, const char *name, char *line, int size)
{
    HPS_ASSERT(size > 0);
    char path[PATH_CHARS];
    int n = snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        return false;
    }
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool good = fgets(line, size, file) != NULL;
    (void)fclose(file);
    return good;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t ram_bytes(const char *root)
{
    char line[LINE_CHARS];
    uint64_t kib = 0;
    if (!read_line(root, "/proc", "meminfo", line, (int)sizeof(line)) ||
        sscanf(line, "MemTotal: %" SCNu64 " kB", &kib) != 1 || kib > UINT64_MAX / 1024) {
        return 0;
    }
    return kib * 1024;
}

/* The path of this process in the hierarchy of `controller`; "": version 2. */
static bool cgroup_path(const char *root, const char *controller, char *out_path, size_t size)
{
    HPS_ASSERT(size > 0);
    char path[PATH_CHARS];
    int n = snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *file = n > 0 && (size_t)n < sizeof(path) ? fopen(path, "re") : NULL;
    if (file == NULL) {
        return false;
    }
    bool found = false;
    char line[LINE_CHARS];
    while (!found && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *where = list == NULL ? NULL : strchr(list + 1, ':');
        if (where == NULL) {
            continue;
        }
        *where++ = '\0';
        found = strcmp(list + 1, controller) == 0 && strlen(where) < size;
        if (found) {
            (void)snprintf(out_path, size, "%s", where);
        }
    }
    (void)fclose(file);
    return found;
}

/* The lowest limit that `read` finds in the group at mount + path and in those above it. In a
 * container the path may be the path on the host and not exist; the mount itself is then the group.
 */
static uint64_t least_up_the_tree(const char *root, const char *mount, const char *path,
                                  uint64_t (*read)(const char *root, const char *dir))
{
    char dir[LINE_CHARS * 2];
    (void)snprintf(dir, sizeof(dir), "%s%s", mount, path);
    uint64_t least = UINT64_MAX;
    for (int depth = 0; depth < CGROUP_DEPTH_MAX && strlen(dir) >= strlen(mount); depth++) {
        least = min_u64(least, read(root, dir));
        char *slash = strrchr(dir, '/');
        if (slash == NULL) {
            break;
        }
        *slash = '\0';
    }
    return least;
}

/* Without a limit the file is missing (root group), has "max" (version 2), or a number near 2^63
 * (version 1). */
static uint64_t memory_limit(const char *root, const char *dir, const char *name)
{
    char line[LINE_CHARS];
    uint64_t bytes = 0;
    bool limited = read_line(root, dir, name, line, (int)sizeof(line)) &&
                   sscanf(line, "%" SCNu64, &bytes) == 1 && bytes != 0;
    return limited ? bytes : UINT64_MAX;
}

static uint64_t memory_limit_v2(const char *root, const char *dir)
{
    return memory_limit(root, dir, "memory.max");
}

static uint64_t memory_limit_v1(const char *root, const char *dir)
{
    return memory_limit(root, dir, "memory.limit_in_bytes");
}

/* In thousandths of a CPU. */
static uint64_t cpu_limit_v2(const char *root, const char *dir)
{
    char line[LINE_CHARS];
    uint64_t quota_us = 0;
    uint64_t period_us = 0;
    if (!read_line(root, dir, "cpu.max", line, (int)sizeof(line)) ||
        sscanf(line, "%" SCNu64 " %" SCNu64, &quota_us, &period_us) != 2 || period_us == 0 ||
        quota_us > UINT64_MAX / 1000) {
        return UINT64_MAX;
    }
    return quota_us * 1000 / period_us;
}

static uint64_t cpu_limit_v1(const char *root, const char *dir)
{
    char line[LINE_CHARS];
    int64_t quota_us = 0;
    int64_t period_us = 0;
    if (!read_line(root, dir, "cpu.cfs_quota_us", line, (int)sizeof(line)) ||
        sscanf(line, "%" SCNd64, &quota_us) != 1 || quota_us <= 0 || quota_us > INT64_MAX / 1000 ||
        !read_line(root, dir, "cpu.cfs_period_us", line, (int)sizeof(line)) ||
        sscanf(line, "%" SCNd64, &period_us) != 1 || period_us <= 0) {
        return UINT64_MAX;
    }
    return (uint64_t)(quota_us * 1000 / period_us);
}

uint64_t hps_limits_memory_bytes_at(const char *root)
{
    char path[PATH_CHARS];
    uint64_t ram = ram_bytes(root);
    uint64_t bytes = ram == 0 ? UINT64_MAX : ram;
    if (cgroup_path(root, "", path, sizeof(path))) {
        bytes = min_u64(bytes, least_up_the_tree(root, "/sys/fs/cgroup", path, memory_limit_v2));
    }
    if (cgroup_path(root, "memory", path, sizeof(path))) {
        bytes =
            min_u64(bytes, least_up_the_tree(root, "/sys/fs/cgroup/memory", path, memory_limit_v1));
    }
    return bytes >= (UINT64_C(1) << 60) ? memory_bytes_unknown : bytes;
}

uint32_t hps_limits_cpus_at(const char *root)
{
    char path[PATH_CHARS];
    uint64_t milli = UINT64_MAX;
    if (cgroup_path(root, "", path, sizeof(path))) {
        milli = min_u64(milli, least_up_the_tree(root, "/sys/fs/cgroup", path, cpu_limit_v2));
    }
    if (cgroup_path(root, "cpu,cpuacct", path, sizeof(path)) ||
        cgroup_path(root, "cpu", path, sizeof(path))) {
        milli = min_u64(milli, least_up_the_tree(root, "/sys/fs/cgroup/cpu", path, cpu_limit_v1));
    }
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    uint64_t n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (uint64_t)CPU_COUNT(&cpus) : 1;
    if (milli != UINT64_MAX) {
        n = min_u64(n, (milli + 999) / 1000);
    }
    return n == 0 ? 1 : (uint32_t)n;
}

uint64_t hps_limits_memory_bytes(void)
{
    return hps_limits_memory_bytes_at("");
}

uint32_t hps_limits_cpus(void)
{
    return hps_limits_cpus_at("");
}
